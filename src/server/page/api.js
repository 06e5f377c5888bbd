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
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

// The response, or an ApiError with the server's words. Asks for a key when one is needed.
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const headers = {};
    if (key) headers.Authorization = 'Bearer ' + key;
    if (body) headers['Content-Type'] = 'application/json';
    const response = await fetch(path, {
      method: body ? 'POST' : 'GET', headers, signal, body: body && JSON.stringify(body), cache: 'no-store',
    });
    if (response.ok) return response;
    let message = `${response.status} ${response.statusText}`;
    try { message = (await response.json()).error.message; } catch { /* not ours */ }
    if (response.status === 401) {
      const tried = key !== '';
      if (await askForKey(tried ? 'The server does not know this key.' : 'This server asks for a key.')) continue;
    }
    throw new ApiError(response.status, message, response.headers.get('Retry-After'));
  }
}

// Yields {event, data} until the stream ends.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf('\n\n')) >= 0) {
        const item = { event: 'message', data: '' };
        for (const line of rest.slice(0, end).split('\n')) {
          if (line.startsWith('event: ')) item.event = line.slice(7);
          else if (line.startsWith('data: ')) item.data += line.slice(6);
        }
        rest = rest.slice(end + 2);
        if (item.data) yield item;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
