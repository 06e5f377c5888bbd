// The chat: asks, shows what comes, keeps the list of conversations.
import { $, h, hideTip, memory, plural, say } from './dom.js';
import * as conversation from './conversation.js';
import { editElement, fillMessage, messageElement } from './message.js';
import { sampling, settings, showSettings } from './settings.js';
import { answer } from './stream.js';
import { scored } from './tokens.js';

let conversations = conversation.load();
const deleted = new Set();  // ids
let current = null;
let running = null;  // {abort, message}
let editing = null;  // the message
let pinned = true;   // the view follows what is written

// ---- conversations ----

function save() {
  conversations = conversation.save(conversations, current, deleted);
}

function start() {
  let fresh = conversations.find((c) => c.messages.length === 0);
  if (!fresh) conversations.unshift(fresh = conversation.make());
  open(fresh);
}

function open(c) {
  if (running && c !== current) stop();
  current = c;
  editing = null;
  pinned = true;
  showList();
  showMessages();
  showListOverlay(false);
}

function removeConversation(c) {
  if (c === current && running) stop();
  deleted.add(c.id);
  conversations = conversations.filter((x) => x !== c);
  if (c === current) current = null;
  save();
  if (current) showList();
  else if (conversations.length) open(conversations[0]);
  else start();
}

function showList() {
  $('conversations').replaceChildren(
    h('button', { class: 'main wide', onclick: () => { start(); $('input').focus(); } }, 'New conversation'),
    h('ul', {}, ...conversations.map((c) => {
      const title = conversation.title(c);
      return h('li', { class: c === current ? 'on' : '' },
        h('button', { class: 'quiet clip', onclick: () => open(c), 'aria-current': c === current ? 'true' : null }, title),
        h('button', { class: 'quiet x', onclick: () => removeConversation(c), 'aria-label': `Delete “${title}”`, title: 'Delete' }, '×'));
    })));
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function exportAs(kind) {
  $('export').open = false;
  const model = $('model').textContent;
  const name = conversation.title(current).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40) || 'conversation';
  if (kind === 'md') download(name + '.md', 'text/markdown', conversation.asMarkdown(current, model, settings.system));
  else download(name + '.json', 'application/json', conversation.asJson(current, model, settings));
}

// ---- messages ----

const actions = {
  pick(m) {
    conversation.pick(current, m);
    save();
    showMessages();
  },
  // Another answer beside this one; a failed one is replaced.
  retry(m) {
    const question = conversation.parentOf(current, m);
    if (conversation.leftOut(m)) conversation.remove(current, m);
    ask(question);
  },
  // Results of the calls in `m`: [{id, name, content}].
  results(m, results) {
    const content = results.map((r) => r.content).join('\n');
    ask(conversation.add(current, m, { role: 'tool', content, results }));
  },
  edit(m) {
    editing = m;
    showMessages();
    $('messages').querySelector('.editing textarea').focus();
  },
  // A failed answer and its question, unless that has other answers.
  remove(m) {
    const question = conversation.parentOf(current, m);
    const alone = conversation.branches(current, m).list.length === 1;
    conversation.remove(current, alone && question ? question : m);
    save();
    showList();
    showMessages();
    $('input').focus();
  },
};

function shown(m) {
  if (m !== editing) return messageElement(current, m, running ? null : actions);
  const leave = () => { editing = null; showMessages(); };
  return editElement(m, (text) => {
    editing = null;
    ask(conversation.add(current, conversation.parentOf(current, m), { role: 'user', content: text }));
  }, leave);
}

function showMessages() {
  const list = conversation.path(current).map(shown);
  const at = $('messages').scrollTop;
  $('messages').replaceChildren(...(list.length ? list : [h('p', { class: 'empty' },
    'Ask something. Settings has the system prompt, sampling, and token probabilities.')]));
  $('export').hidden = !list.length;
  $('messages').scrollTop = at;
  follow();
}

function follow() {
  if (pinned) $('messages').scrollTop = $('messages').scrollHeight;
}

// ---- asking ----

function requestOf(question) {
  const list = conversation.path(current);
  const past = conversation.history(list.slice(0, list.indexOf(question) + 1));
  const body = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...sampling() };
  if (current.plain) {  // a model without a chat template continues text
    body.prompt = (settings.system ? settings.system + '\n' : '') + past.map((m) => m.content).join('');
    if (settings.probabilities) body.logprobs = 5;
    body.max_tokens ??= 256;
    delete body.tools;
    return ['/v1/completions', body];
  }
  body.messages = past;
  if (settings.system) body.messages.unshift({ role: 'system', content: settings.system });
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return ['/v1/chat/completions', body];
}

// A call's first piece has its id and name, those that follow its arguments.
function takeCall(m, piece) {
  const call = (m.calls ??= [])[piece.index] ??= { id: '', name: '', arguments: '' };
  call.id = piece.id ?? call.id;
  call.name += piece.function?.name ?? '';
  call.arguments += piece.function?.arguments ?? '';
}

function take(m, data, clock) {
  const chunk = JSON.parse(data);
  if (chunk.error) throw Object.assign(new Error(chunk.error.message), { said: true });
  m.answer = chunk.id ?? m.answer;
  const u = chunk.usage;
  if (u) Object.assign(m.stats, { output: u.completion_tokens, prompt: u.prompt_tokens, cached: u.prompt_tokens_details?.cached_tokens });
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const text = choice.delta ? choice.delta.content || '' : choice.text || '';
  const thought = choice.delta?.reasoning_content || choice.delta?.reasoning || '';
  if (thought) m.reasoning = (m.reasoning ?? '') + thought;
  m.content += text;
  const calls = choice.delta?.tool_calls ?? [];
  calls.forEach((c) => takeCall(m, c));
  if (text || thought || calls.length) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    m.stats.ttft = clock.first - clock.begin;
  }
  if (choice.logprobs) (m.tokens ??= []).push(...scored(choice.logprobs));
  if (choice.finish_reason) m.finish = choice.finish_reason;
}

// What has come of it so far is dropped.
function beginAgain(m, clock) {
  Object.assign(m, { content: '', stats: {}, restarted: true });
  for (const name of ['reasoning', 'calls', 'tokens', 'finish', 'answer', 'last']) delete m[name];
  Object.assign(clock, { begin: performance.now(), first: null, last: null });
}

// `message`: an answer that was being written when the page was left.
async function ask(question, message = null) {
  const mine = current;
  message ??= conversation.add(mine, question, { role: 'assistant', content: '', stats: {}, live: true });
  const [path, body] = requestOf(question);
  if (body.max_tokens) message.limit = body.max_tokens;
  message.json = body.json_schema !== undefined;
  running = { abort: new AbortController(), message };
  pinned = true;
  save();
  showList();
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
      if (running?.message === message) { fillMessage(element, mine, message, null); follow(); }
    });
  };
  let again = false;
  try {
    for await (const { data, id, lost, restarted } of answer(path, body, running.abort.signal, message.last)) {
      if (data) take(message, data, clock);
      if (id) message.last = id;
      if (lost !== undefined) message.lost = lost;
      if (restarted) beginAgain(message, clock);
      redraw();
    }
    if (message.finish == null) message.error = 'The answer ended without a reason.';
  } catch (e) {
    if (running.abort.signal.aborted) message.finish = 'stopped';
    else if (!mine.plain && /no chat template/.test(e.message)) again = mine.plain = true;
    else message.error = e.message + (e.retryAfter ? ` (try again in ${e.retryAfter} s)` : '');
  }
  finish(mine, message, clock);
  if (again) {  // as plain text then
    conversation.remove(mine, message);
    if (mine === current) ask(question);
  }
}

function finish(c, message, clock) {
  const s = message.stats;
  if (clock.last > clock.first && (s.output ?? 0) > 1) s.rate = (s.output - 1) / ((clock.last - clock.first) / 1e3);
  for (const name of ['live', 'lost', 'last']) delete message[name];
  running = null;
  conversation.touch(c);
  save();
  showSend();
  if (c === current) showMessages();
  showList();
  say(message.error ? `The answer failed: ${message.error}` : `Answer complete${s.output ? `, ${plural(s.output, 'token')}` : ''}.`);
}

function stop() {
  running?.abort.abort();
}

function send() {
  if (running) return stop();
  const text = $('input').value;
  if (text.trim() === '') return;
  editing = null;
  $('input').value = '';
  fit();
  ask(conversation.add(current, conversation.path(current).at(-1), { role: 'user', content: text }));
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

// ---- the panels beside it ----

function showListOverlay(on) {
  $('conversations').classList.toggle('open', on);
  $('show-list').setAttribute('aria-expanded', on);
  if (on) togglePanel(false);
}

function togglePanel(on) {
  $('settings').hidden = !on;
  $('show-settings').setAttribute('aria-expanded', on);
}

function startPanels() {
  const narrow = matchMedia('(max-width: 800px)');
  const wide = matchMedia('(min-width: 1100px)').matches;
  togglePanel(memory.get('settings-open', wide) && wide);
  narrow.addEventListener('change', (e) => { if (e.matches) togglePanel(false); });
  $('show-list').addEventListener('click', () => showListOverlay(!$('conversations').classList.contains('open')));
  $('show-settings').addEventListener('click', () => {
    togglePanel($('settings').hidden);
    if (narrow.matches) showListOverlay(false);
    else memory.set('settings-open', !$('settings').hidden);
  });
  $('export-md').addEventListener('click', () => exportAs('md'));
  $('export-json').addEventListener('click', () => exportAs('json'));
  $('export').addEventListener('focusout', (e) => { if (!$('export').contains(e.relatedTarget)) $('export').open = false; });
  // Escape closes what is open on top, and only then stops an answer.
  document.addEventListener('keydown', (e) => {
    if (e.key !== 'Escape' || $('chat').hidden) return;
    if ($('export').open) { $('export').open = false; $('export').firstElementChild.focus(); }
    else if ($('conversations').classList.contains('open')) { showListOverlay(false); $('show-list').focus(); }
    else if (narrow.matches && !$('settings').hidden) { togglePanel(false); $('show-settings').focus(); }
    else if (running) stop();
  });
}

export function startChat() {
  showSettings(() => { if (!running) showMessages(); });
  startPanels();
  if (conversations.length) open(conversations[0]); else start();
  const left = conversation.path(current).at(-1);
  if (left?.live) ask(conversation.parentOf(current, left), left);
  addEventListener('pagehide', () => { if (running) save(); });
  $('composer').addEventListener('submit', (e) => { e.preventDefault(); send(); });
  $('input').addEventListener('input', fit);
  $('input').addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      if (!running) send();
    }
  });
  $('messages').addEventListener('scroll', () => {
    const m = $('messages');
    pinned = m.scrollHeight - m.scrollTop - m.clientHeight < 40;
    hideTip();
  });
}
