// The chat: conversations in the browser's memory, answers streamed from /v1/chat/completions.
import { $, h, count, hideTip, memory, number, percent, plural, showTip, time } from './dom.js';
import { call, events } from './api.js';
import { markdown } from './markdown.js';

const kMaxConversations = 100;

// name, label, what it means, kind, and what the server does when it is empty
const kParameters = [
  ['temperature', 'Temperature', '0 is greedy', { min: 0, max: 5, step: 0.05, hint: '1' }],
  ['top_p', 'Top p', 'keep the most likely tokens up to this probability', { min: 0.01, max: 1, step: 0.01, hint: '1' }],
  ['top_k', 'Top k', 'keep so many tokens; 0 is all', { min: 0, step: 1, hint: '0' }],
  ['min_p', 'Min p', 'drop tokens below this share of the most likely', { min: 0, max: 1, step: 0.01, hint: '0' }],
  ['max_tokens', 'Max tokens', 'of the answer', { min: 1, step: 1, hint: 'context' }],
  ['seed', 'Seed', 'the same seed gives the same answer', { min: 0, step: 1, hint: 'random' }],
  ['repetition_penalty', 'Repetition penalty', 'above 1 repeats less', { min: 0.01, max: 5, step: 0.05, hint: '1' }],
  ['frequency_penalty', 'Frequency penalty', 'per occurrence so far', { min: -2, max: 2, step: 0.1, hint: '0' }],
  ['presence_penalty', 'Presence penalty', 'for having occurred', { min: -2, max: 2, step: 0.1, hint: '0' }],
];

let conversations = memory.get('conversations', []);
let current = null;
let settings = { system: '', values: {}, stop: '', probabilities: false, ...memory.get('settings', {}) };
let running = null;  // {abort, message}
let pinned = true;   // the view follows what is written

// ---- conversations ----

function save() {
  conversations = conversations.filter((c) => c.messages.length > 0 || c === current).slice(0, kMaxConversations);
  const kept = conversations.filter((c) => c.messages.length > 0);
  if (memory.set('conversations', kept)) return;
  // Full: token probabilities are the bulk of it, then the oldest conversations.
  for (const c of kept) for (const m of c.messages) delete m.tokens;
  while (kept.length > 1 && !memory.set('conversations', kept)) kept.pop();
}

function title(c) {
  const first = c.messages.find((m) => m.role === 'user');
  return first ? first.content.trim().split('\n')[0].slice(0, 60) : 'New conversation';
}

function start() {
  if (running) stop();
  current = conversations.find((c) => c.messages.length === 0);
  if (!current) {
    current = { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 6), messages: [] };
    conversations.unshift(current);
  }
  open(current);
}

function open(c) {
  if (running && c !== current) stop();
  current = c;
  pinned = true;
  showList();
  showMessages();
  $('conversations').classList.remove('open');
  $('show-list').setAttribute('aria-expanded', 'false');
}

function remove(c) {
  if (c === current && running) stop();
  conversations = conversations.filter((x) => x !== c);
  save();
  if (c === current) {
    if (conversations.length) open(conversations[0]); else start();
  } else {
    showList();
  }
}

function showList() {
  $('conversations').replaceChildren(
    h('button', { class: 'main wide', onclick: () => { start(); $('input').focus(); } }, 'New conversation'),
    h('ul', {}, ...conversations.map((c) => h('li', { class: c === current ? 'on' : '' },
      h('button', { class: 'quiet clip', onclick: () => open(c), 'aria-current': c === current ? 'true' : null }, title(c)),
      h('button', { class: 'quiet x', onclick: () => remove(c), 'aria-label': `Delete “${title(c)}”`, title: 'Delete' }, '×')))));
}

// ---- messages ----

// From white through the accent as the probability falls; the number is in the tooltip.
function tint(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 'p0' : p > 0.7 ? 'p1' : p > 0.5 ? 'p2' : p > 0.3 ? 'p3' : p > 0.1 ? 'p4' : 'p5';
}

function visible(token) {
  return token.replace(/ /g, '␣').replace(/\n/g, '↵').replace(/\t/g, '⇥') || '∅';
}

function tokenTip(span, [text, logprob, top]) {
  const rows = top.some(([t]) => t === text) ? top : [[text, logprob], ...top];
  const table = h('table', { class: 'top' }, ...rows.map(([t, l]) => {
    const bar = h('i');
    bar.style.width = `${Math.max(1, 60 * Math.exp(l))}px`;
    return h('tr', { class: t === text ? 'chosen' : '' }, h('td', {}, h('code', {}, visible(t))),
      h('td', { class: 'num' }, percent(Math.exp(l))), h('td', {}, bar));
  }));
  const box = span.getBoundingClientRect();
  showTip(box.left - 12, box.bottom - 12, table);
}

function tokenSpans(tokens) {
  const p = h('p', { class: 'tokens' });
  for (const t of tokens) {
    const span = h('span', { class: 'tok ' + tint(t[1]), tabindex: '-1' }, t[0]);
    span.addEventListener('pointerenter', () => tokenTip(span, t));
    span.addEventListener('focus', () => tokenTip(span, t));
    span.addEventListener('pointerleave', hideTip);
    span.addEventListener('blur', hideTip);
    p.append(span);
  }
  // One stop for the keyboard; the arrows walk.
  if (p.firstChild) p.firstChild.tabIndex = 0;
  p.addEventListener('keydown', (e) => {
    const to = e.key === 'ArrowRight' ? e.target.nextSibling : e.key === 'ArrowLeft' ? e.target.previousSibling : null;
    if (to) { to.focus(); e.preventDefault(); }
  });
  return p;
}

function statsLine(m) {
  const s = m.stats;
  if (!s) return null;
  const parts = [];
  if (s.output != null) parts.push(plural(s.output, 'token'));
  if (s.rate) parts.push(`${number(s.rate)} tokens/s`);
  if (s.ttft != null) parts.push(`first after ${time(s.ttft * 1e3)}`);
  if (s.prompt != null) parts.push(`prompt ${count(s.prompt)}${s.cached ? `, ${count(s.cached)} cached` : ''}`);
  if (m.finish && m.finish !== 'stop') parts.push(m.finish === 'length' ? 'cut at the limit' : m.finish);
  return h('p', { class: 'stats muted small num' }, parts.join(' · '));
}

function fill(element, m) {
  const body = element.querySelector('.body');
  if (m.role === 'user') body.replaceChildren(h('p', { class: 'plain' }, m.content));
  else if (m.tokens?.length && settings.probabilities) body.replaceChildren(tokenSpans(m.tokens));
  else {
    let made;
    try { made = markdown(m.content); } catch { made = [h('p', { class: 'plain' }, m.content)]; }
    body.replaceChildren(...made);
  }
  if (running?.message === m) {
    if (!m.content) body.append(h('p', { class: 'muted waiting' }, 'Waiting for the first token'));
    body.append(h('i', { class: 'caret', 'aria-hidden': 'true' }));
  }
  if (m.error) body.append(h('p', { class: 'error', role: 'alert' }, m.error));
  element.querySelector('.foot').replaceChildren(...[statsLine(m), tools(m)].filter(Boolean));
}

function tools(m) {
  if (running) return null;
  const buttons = [];
  const last = current.messages[current.messages.length - 1] === m;
  const act = (label, f) => buttons.push(h('button', { class: 'quiet small', onclick: f }, label));
  if (m.content) act('Copy', (e) => navigator.clipboard.writeText(m.content).then(() => { e.target.textContent = 'Copied'; }, () => {}));
  if (m.role === 'assistant' && last) act('Retry', retry);
  if (m === lastUser()) act('Edit', () => edit(m));
  return h('span', { class: 'tools' }, ...buttons);
}

const lastUser = () => current.messages.filter((m) => m.role === 'user').pop();

function retry() {
  if (current.messages[current.messages.length - 1]?.role === 'assistant') current.messages.pop();
  ask();
}

function edit(m) {
  current.messages.splice(current.messages.indexOf(m));
  $('input').value = m.content;
  showMessages();
  fit();
  $('input').focus();
}

function messageElement(m) {
  const e = h('article', { class: 'message ' + m.role, 'aria-label': m.role === 'user' ? 'You' : 'Answer' },
    h('div', { class: 'body' }), h('div', { class: 'foot' }));
  fill(e, m);
  return e;
}

function showMessages() {
  const list = current.messages.map(messageElement);
  $('messages').replaceChildren(...(list.length ? list : [h('p', { class: 'empty' },
    'Ask something. Settings has the system prompt, sampling, and token probabilities.')]));
  follow();
}

function follow() {
  if (pinned) $('messages').scrollTop = $('messages').scrollHeight;
}

// ---- asking ----

function requestBody() {
  const body = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const [name] of kParameters) {
    const v = settings.values[name];
    if (v !== undefined && v !== '' && isFinite(v)) body[name] = Number(v);
  }
  const stops = settings.stop.split('\n').map((s) => s.replace(/\\n/g, '\n')).filter(Boolean);
  if (stops.length) body.stop = stops;
  const past = current.messages.filter((m) => m.content && m !== running.message);
  if (current.plain) {  // a model without a chat template continues text
    body.prompt = (settings.system ? settings.system + '\n' : '') + past.map((m) => m.content).join('');
    if (settings.probabilities) body.logprobs = 5;
    body.max_tokens ??= 256;
    return ['/v1/completions', body];
  }
  body.messages = past.map((m) => ({ role: m.role, content: m.content }));
  if (settings.system) body.messages.unshift({ role: 'system', content: settings.system });
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return ['/v1/chat/completions', body];
}

// Both shapes of log-probabilities as [token, logprob, [[token, logprob], ...]].
function scored(l) {
  if (!l) return [];
  if (l.content) return l.content.map((t) => [t.token, t.logprob, t.top_logprobs.map((x) => [x.token, x.logprob])]);
  return l.tokens.map((t, i) => [t, l.token_logprobs[i] ?? 0,
    Object.entries(l.top_logprobs?.[i] || {}).sort((a, b) => b[1] - a[1])]);
}

function take(m, data, clock) {
  const chunk = JSON.parse(data);
  if (chunk.error) throw new Error(chunk.error.message);
  const u = chunk.usage;
  if (u) Object.assign(m.stats, { output: u.completion_tokens, prompt: u.prompt_tokens, cached: u.prompt_tokens_details?.cached_tokens });
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const text = choice.delta ? choice.delta.content || '' : choice.text || '';
  if (text) {
    m.content += text;
    clock.last = performance.now();
    if (clock.first == null) {
      clock.first = clock.last;
      m.stats.ttft = clock.first - clock.begin;
    }
  }
  if (choice.logprobs) (m.tokens ??= []).push(...scored(choice.logprobs));
  if (choice.finish_reason) m.finish = choice.finish_reason;
}

async function ask() {
  const message = { role: 'assistant', content: '', stats: {} };
  const conversation = current;
  running = { abort: new AbortController(), message };
  current.messages.push(message);
  pinned = true;
  showMessages();
  showSend();
  const element = $('messages').lastElementChild;
  const clock = { begin: performance.now(), first: null, last: null };
  let due = false;
  const redraw = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (running?.message === message) { fill(element, message); follow(); }
    });
  };
  try {
    const [path, body] = requestBody();
    const response = await call(path, { body, signal: running.abort.signal });
    for await (const { data } of events(response)) {
      if (data === '[DONE]') break;
      take(message, data, clock);
      redraw();
    }
  } catch (e) {
    if (e.name === 'AbortError') message.finish = 'stopped';
    else if (!conversation.plain && /no chat template/.test(e.message)) conversation.plain = true;
    else message.error = e.message + (e.retryAfter ? ` (try again in ${e.retryAfter} s)` : '');
  }
  const s = message.stats;
  if (clock.first != null && clock.last > clock.first && (s.output ?? 0) > 1) s.rate = (s.output - 1) / ((clock.last - clock.first) / 1e3);
  const again = conversation.plain && !message.content && !message.error && message.finish == null;
  running = null;
  if (again) {  // said that it has no template: as plain text then
    conversation.messages.pop();
    if (conversation === current) return ask();
  }
  save();
  showSend();
  if (conversation === current) {
    const at = $('messages').scrollTop;
    showMessages();
    if (!pinned) $('messages').scrollTop = at;
  }
  showList();
}

function stop() {
  running?.abort.abort();
}

function send() {
  if (running) return stop();
  const text = $('input').value;
  if (text.trim() === '') return;
  current.messages.push({ role: 'user', content: text });
  $('input').value = '';
  fit();
  save();
  showList();
  ask();
}

function showSend() {
  $('send').textContent = running ? 'Stop' : 'Send';
  $('send').classList.toggle('stop', running != null);
}

function fit() {
  const input = $('input');
  input.style.height = 'auto';
  const most = innerHeight * 0.4;
  input.style.height = Math.min(input.scrollHeight + 2, most) + 'px';
  input.style.overflowY = input.scrollHeight + 2 > most ? 'auto' : 'hidden';
}

// ---- settings ----

function showSettings() {
  const keep = () => memory.set('settings', settings);
  const fields = kParameters.map(([name, label, what, o]) => {
    const input = h('input', { type: 'number', id: 'p-' + name, min: o.min, max: o.max, step: o.step, placeholder: o.hint, title: what,
      oninput: (e) => {
        settings.values[name] = e.target.value;
        keep();
      } });
    input.value = settings.values[name] ?? '';
    return h('label', { title: what }, h('span', {}, label), input);
  });
  const system = h('textarea', { rows: '4', id: 'p-system', placeholder: 'None', oninput: (e) => { settings.system = e.target.value; keep(); } });
  system.value = settings.system;
  const stops = h('textarea', { rows: '2', id: 'p-stop', placeholder: 'One per line; \\n is a line break', oninput: (e) => { settings.stop = e.target.value; keep(); } });
  stops.value = settings.stop;
  const probabilities = h('input', { type: 'checkbox', id: 'p-probabilities', onchange: (e) => {
    settings.probabilities = e.target.checked;
    keep();
    if (!running) showMessages();
  } });
  probabilities.checked = settings.probabilities;
  const reset = h('button', { class: 'quiet small', onclick: () => {
    settings.values = {};
    settings.stop = '';
    keep();
    showSettings();
  } }, 'Reset sampling');
  $('settings').replaceChildren(
    h('label', { class: 'tall' }, h('span', {}, 'System prompt'), system),
    h('label', { class: 'check' }, probabilities, h('span', {}, 'Token probabilities')),
    h('p', { class: 'muted small' }, 'Tokens are tinted by how unlikely they were; hover for the alternatives.'),
    h('h3', {}, 'Sampling'), ...fields,
    h('label', { class: 'tall' }, h('span', {}, 'Stop strings'), stops),
    h('p', { class: 'muted small' }, 'An empty field leaves the choice to the server.'), reset);
}

export function startChat() {
  showSettings();
  if (conversations.length) open(conversations[0]); else start();
  $('composer').addEventListener('submit', (e) => { e.preventDefault(); send(); });
  $('input').addEventListener('input', fit);
  $('input').addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      if (!running) send();
    }
  });
  document.addEventListener('keydown', (e) => { if (e.key === 'Escape' && running) stop(); });
  $('messages').addEventListener('scroll', () => {
    const m = $('messages');
    pinned = m.scrollHeight - m.scrollTop - m.clientHeight < 40;
    hideTip();
  });
  $('show-list').addEventListener('click', () => {
    const open = $('conversations').classList.toggle('open');
    $('show-list').setAttribute('aria-expanded', open);
  });
  const wide = matchMedia('(min-width: 1100px)').matches;
  const toggle = (on) => {
    $('settings').hidden = !on;
    $('show-settings').setAttribute('aria-expanded', on);
  };
  toggle(memory.get('settings-open', wide) && wide);
  matchMedia('(max-width: 800px)').addEventListener('change', (e) => { if (e.matches) toggle(false); });
  $('show-settings').addEventListener('click', () => {
    toggle($('settings').hidden);
    memory.set('settings-open', !$('settings').hidden);
  });
}
