// One message as elements: its text, what went wrong with it, what can be done with it.
import { count, h, number, patch, plural, time } from './dom.js';
import { callBoxes, resultBoxes, resultForm } from './calls.js';
import { answered, branches, leftOut, wholeCalls } from './conversation.js';
import { markdown } from './markdown.js';
import { settings } from './settings.js';
import { splitThinking } from './thinking.js';
import { tokenSpans } from './tokens.js';

function formatted(text) {
  try {
    return markdown(text);
  } catch {
    return [h('p', { class: 'plain' }, text)];
  }
}

// Which folds are open, by message; `m.live` has its own word for what it does.
const unfolded = new WeakMap();

function fold(m, i, text, open) {
  const state = unfolded.get(m) ?? new Set();
  unfolded.set(m, state);
  const words = text.trim() === '' ? 0 : text.trim().split(/\s+/).length;
  const label = open && m.live ? `Thinking, ${plural(words, 'word')} so far` : open ? `Thoughts without an end, ${plural(words, 'word')}` : `Thoughts, ${plural(words, 'word')}`;
  const e = h('details', { class: 'think', open: state.has(i) }, h('summary', { class: 'muted small' }, label), h('div', { class: 'body' }, ...formatted(text)));
  e.addEventListener('toggle', () => { if (e.open) state.add(i); else state.delete(i); });
  return e;
}

// Answers to requests with a JSON schema that are shown as they came.
const raw = new WeakSet();

// Such an answer with its lines broken and indented, once it is whole.
function structured(m) {
  if (!raw.has(m)) {
    try {
      return formatted('```json\n' + JSON.stringify(JSON.parse(m.content), null, 2) + '\n```');
    } catch { /* still being written, or cut */ }
  }
  return [h('p', { class: 'plain structured' }, m.content)];
}

function answerNodes(m) {
  if (m.tokens?.length && settings.probabilities) return [tokenSpans(m.tokens)];
  const parts = m.reasoning ? [{ think: true, text: m.reasoning, open: m.live && !m.content && !m.calls }] : [];
  if (m.content && !m.json) parts.push(...splitThinking(m.content));
  const nodes = parts.flatMap((p, i) => (p.think ? (p.text.trim() || p.open ? [fold(m, i, p.text, p.open)] : []) : formatted(p.text)));
  if (m.content && m.json) nodes.push(...structured(m));
  return [...nodes, ...callBoxes(m.calls ?? [])];
}

// Of an answer that called tools and has no results yet.
function resultNodes(c, m, actions) {
  const calls = wholeCalls(m);
  if (!actions || m.live || !calls.length || m.error || answered(c, m)) return [];
  return [resultForm(m.id, calls, (results) => actions.results(m, results))];
}

const note = (kind, text, ...more) => h('p', { class: 'note ' + kind, role: kind === 'error' ? 'alert' : 'status' }, text, ...more);

// Which limit an answer ran into.
function cutBy(m) {
  const { output, prompt } = m.stats ?? {};
  if (m.limit && output >= m.limit) return `Cut at ${plural(m.limit, 'token')}: Max tokens in the settings.`;
  return `Cut: the context is full${prompt != null && output != null ? `, ${count(prompt + output)} tokens` : ''}.`;
}

function notes(m) {
  const out = [];
  if (m.live && m.lost) out.push(note('lost', 'The server cannot be reached. Trying again.'));
  else if (m.live && !m.content && !m.reasoning && !m.calls) out.push(h('p', { class: 'muted waiting' }, 'Waiting for the first token'));
  if (m.restarted) out.push(note('lost', 'The server was lost and the question asked again.'));
  if (m.finish === 'length') out.push(note('cut', cutBy(m)));
  if (m.error) out.push(note('error', m.error));
  if (leftOut(m)) out.push(h('p', { class: 'muted small' }, 'This turn is not sent with later questions.'));
  return out;
}

function statsLine(m) {
  const s = m.stats;
  if (!s) return null;
  const parts = [];
  if (s.output != null) parts.push(plural(s.output, 'token'));
  if (s.rate) parts.push(`${number(s.rate)} tokens/s`);
  if (s.ttft != null) parts.push(`first after ${time(s.ttft * 1e3)}`);
  if (s.prompt != null) parts.push(`prompt ${count(s.prompt)}${s.cached ? `, ${count(s.cached)} cached` : ''}`);
  if (m.finish === 'stopped') parts.push('stopped');
  return h('p', { class: 'stats muted small num' }, parts.join(' · '));
}

async function copy(e, text) {
  const button = e.currentTarget;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

// Between the message's siblings.
function walk(c, m, actions) {
  const { at, list } = branches(c, m);
  if (list.length < 2) return null;
  const step = (by, label, sign) => h('button', { class: 'quiet small', 'aria-label': label, title: label, disabled: !list[at + by], onclick: () => actions.pick(list[at + by]) }, sign);
  return h('span', { class: 'walk', role: 'group', 'aria-label': 'Branches' }, step(-1, 'Branch before', '‹'), h('span', { class: 'num small muted' }, `${at + 1} of ${list.length}`), step(1, 'Next branch', '›'));
}

function tools(c, m, actions) {
  const buttons = [];
  const act = (name, label, f) => buttons.push(h('button', { class: 'quiet small ' + name, onclick: f }, label));
  if (m.content) act('copy', 'Copy', (e) => copy(e, m.content));
  if (m.json && m.content) {
    act('raw', raw.has(m) ? 'Formatted' : 'Raw', (e) => {
      if (!raw.delete(m)) raw.add(m);
      fillMessage(e.currentTarget.closest('.message'), c, m, actions);
    });
  }
  if (m.role === 'assistant') act('retry', 'Retry', () => actions.retry(m));
  if (m.role === 'user') act('edit', 'Edit', () => actions.edit(m));
  if (leftOut(m)) act('remove', 'Remove', () => actions.remove(m));
  if (m.answer) buttons.push(h('a', { class: 'small story', href: '#engine/' + m.answer, title: 'Where its time went' }, 'Story'));
  return h('span', { class: 'tools' }, ...buttons);
}

export function fillMessage(element, c, m, actions) {
  const made = m.role === 'user' ? [h('p', { class: 'plain' }, m.content)]
    : m.role === 'tool' ? resultBoxes(m.results)
      : [...answerNodes(m), ...notes(m), ...resultNodes(c, m, actions)];
  if (m.live) made.push(h('i', { class: 'caret', 'aria-hidden': 'true' }));
  patch(element.querySelector('.body'), made);
  element.classList.toggle('left-out', leftOut(m));
  const foot = [statsLine(m), ...(actions ? [walk(c, m, actions), tools(c, m, actions)] : [])];
  element.querySelector('.foot').replaceChildren(...foot.filter(Boolean));
}

export function messageElement(c, m, actions) {
  const e = h('article', { class: 'message ' + m.role, 'aria-label': { user: 'You', tool: 'Results' }[m.role] ?? 'Answer' },
    h('div', { class: 'body' }), h('div', { class: 'foot' }));
  fillMessage(e, c, m, actions);
  return e;
}

// A question being changed, in its place.
export function editElement(m, onSend, onCancel) {
  const area = h('textarea', { rows: Math.min(m.content.split('\n').length + 1, 12), 'aria-label': 'Edit the message' });
  area.value = m.content;
  const send = () => { if (area.value.trim() !== '') onSend(area.value); };
  const e = h('form', { class: 'message user editing', onsubmit: (x) => { x.preventDefault(); send(); } }, area,
    h('p', { class: 'right' }, h('button', { type: 'button', class: 'quiet', onclick: onCancel }, 'Cancel'), ' ', h('button', { class: 'main' }, 'Send')));
  area.addEventListener('keydown', (x) => {
    if (x.key === 'Enter' && !x.shiftKey && !x.isComposing) { x.preventDefault(); send(); }
    if (x.key === 'Escape') { x.stopPropagation(); onCancel(); }
  });
  return e;
}
