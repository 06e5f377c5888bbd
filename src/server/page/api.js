// Talking to the server: the key, errors as it says them, server-sent events over fetch.
import { $ } from './dom.js';

let key = '';
try { key = sessionStorage.getItem('sluice.key') || ''; } catch { /* without */ }

let asking = null;
// One dialog at a time; resolves to whether there is a key to try.
export function askForKey(why) {
  asking ??= new Promise((done) => {
    const dialog = $('key-dialog');
    $('key-why').textContent = why;
    $('key-input').value = '';
    dialog.addEventListener('close', () => {
      asking = null;
      const given = $('key-input').value.trim();
      const ok = dialog.returnValue === 'ok' && given !== '';
      if (ok) {
        key = given;
        try { sessionStorage.setItem('sluice.key', key); } catch { /* for this page only */ }
      }
      $('key-input').value = '';
      done(ok);
    }, { once: true });
    $('key-cancel').onclick = () => dialog.close('cancel');
    dialog.returnValue = 'cancel';
    dialog.showModal();
    $('key-input').focus();
  });
  return asking;
}

export class ApiError extends Error {
  constructor(status, message, code, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

// The response, or an ApiError with the server's words. Asks for a key when one is needed.
export async function call(path, { body, method = body ? 'POST' : 'GET', signal, headers: more } = {}) {
  for (;;) {
    const headers = { ...more };
    if (key) headers.Authorization = 'Bearer ' + key;
    if (method !== 'GET') headers['Content-Type'] = 'application/json';
    const response = await fetch(path, {
      method, headers, signal, body: body && JSON.stringify(body), cache: 'no-store',
    });
    if (response.ok) return response;
    let error = { message: `${response.status} ${response.statusText}` };
    try { error = (await response.json()).error; } catch { /* not ours */ }
    if (response.status === 401) {
      const tried = key !== '';
      if (await askForKey(tried ? 'The server does not know this key.' : 'This server asks for a key.')) continue;
    }
    throw new ApiError(response.status, error.message, error.code, response.headers.get('Retry-After'));
  }
}

// Yields {event, data, id} until the stream ends; calls `alive` whenever bytes come.
export async function* events(response, alive = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      rest += value;
      let end;
      while ((end = rest.indexOf('\n\n')) >= 0) {
        const item = { event: 'message', data: '', id: '' };
        for (const line of rest.slice(0, end).split('\n')) {
          if (line.startsWith('event: ')) item.event = line.slice(7);
          else if (line.startsWith('data: ')) item.data += line.slice(6);
          else if (line.startsWith('id: ')) item.id = line.slice(4);
        }
        rest = rest.slice(end + 2);
        if (item.data) yield item;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
