// Conversations in the browser's memory. A conversation is a tree: a message has a parent, an edited
// question or another answer is a sibling, and `picked` says which child of a message is shown.
import { memory } from './dom.js';
import { withoutThinking } from './thinking.js';

const kMost = 100;
const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

export const make = () => ({ id: newId(), messages: [], picked: {} });

const children = (c, parent) => c.messages.filter((m) => m.parent === parent);

// From the first message to the last one shown.
export function path(c) {
  const out = [];
  for (let at = '';;) {
    const list = children(c, at);
    const m = list.find((x) => x.id === c.picked[at]) ?? list.at(-1);
    if (!m) return out;
    out.push(m);
    at = m.id;
  }
}

export function add(c, parent, message) {
  Object.assign(message, { id: newId(), parent: parent?.id ?? '' });
  c.messages.push(message);
  c.picked[message.parent] = message.id;
  touch(c);
  return message;
}

export const parentOf = (c, m) => c.messages.find((x) => x.id === m.parent);

// The message and all that follows it.
export function remove(c, m) {
  const gone = new Set([m.id]);
  for (const x of c.messages) if (gone.has(x.parent)) gone.add(x.id);  // children come later
  c.messages = c.messages.filter((x) => !gone.has(x.id));
  for (const id of gone) delete c.picked[id];
  if (c.picked[m.parent] === m.id) delete c.picked[m.parent];
  touch(c);
}

// {at, of}: which of its siblings a message is.
export function branches(c, m) {
  const list = children(c, m.parent);
  return { at: list.indexOf(m), list };
}

export function pick(c, m) {
  c.picked[m.parent] = m.id;
  touch(c);
}

// Does anything follow the message?
export const answered = (c, m) => c.messages.some((x) => x.parent === m.id);

const said = (m) => (m.role === 'assistant' ? withoutThinking(m.content) : m.content);

// A call that was stopped or cut in its arguments is none: no server takes half an object.
function isWhole(call) {
  try {
    const value = JSON.parse(call.arguments || '{}');
    return value !== null && typeof value === 'object' && !Array.isArray(value);
  } catch {
    return false;
  }
}
export const wholeCalls = (m) => (m.calls ?? []).filter(isWhole);

// An answer that failed, or has neither text nor calls, is no part of the conversation. What it answers goes with it,
// back to the question: templates want turns to alternate.
export const leftOut = (m) => m.role === 'assistant' && !m.live && (m.error != null || (said(m).trim() === '' && !wholeCalls(m).length));

// A message as the server takes it: several where one has the results of several calls.
function sent(m, next) {
  if (m.role === 'tool') return m.results.map((r) => ({ role: 'tool', tool_call_id: r.id, content: r.content }));
  const out = { role: m.role, content: said(m) };
  const calls = next?.role === 'tool' ? wholeCalls(m) : [];  // those that nobody answered are not repeated
  if (calls.length) out.tool_calls = calls.map((c) => ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments } }));
  return [out];
}

// What the server is told to answer the last message of `list`, without reasoning.
export function history(list) {
  const kept = list.map(() => true);
  list.forEach((m, i) => {
    const next = list[i + 1];
    const silent = m.role === 'assistant' && !said(m).trim() && next && next.role !== 'tool';  // calls without results
    if (!leftOut(m) && !silent) return;
    for (let at = i; at >= 0; --at) {
      kept[at] = false;
      if (list[at].role === 'user') break;
    }
  });
  return list.flatMap((m, i) => (kept[i] ? sent(m, list[i + 1]) : []));
}

export function title(c) {
  const first = path(c).find((m) => m.role === 'user');
  return first ? first.content.trim().split('\n')[0].slice(0, 60) : 'New conversation';
}

// ---- kept ----

// Lists from before there were branches.
function repaired(c) {
  let before = '';
  for (const m of c.messages) {
    m.id ??= newId();
    m.parent ??= before;
    before = m.id;
  }
  c.picked ??= {};
  return c;
}

// Answers that the page was left under have failed, but for `last`, which is taken up again.
function abandon(c, last) {
  for (const m of c.messages) {
    if (!m.live || (m === last && m.last)) continue;
    delete m.live;
    m.error ??= 'The page was left before the answer ended.';
  }
}

export function load() {
  const list = memory.get('conversations', []).map(repaired);
  list.forEach((c, i) => abandon(c, i === 0 ? path(c).at(-1) : null));
  return list;
}

export const touch = (c) => { c.changed = Date.now(); };

// Returns what is left of the list. Other tabs save too: of what both have the newer one stays, and
// what only they have, unless it is in `deleted` (ids).
export function save(list, current, deleted) {
  const stored = new Map(memory.get('conversations', []).map((c) => [c.id, c]));
  const own = list.filter((c) => c.messages.length > 0 || c === current).map((c) => {
    const other = stored.get(c.id);
    stored.delete(c.id);
    return c !== current && other?.changed > (c.changed ?? 0) ? repaired(other) : c;
  });
  const others = [...stored.values()].filter((c) => !deleted.has(c.id)).map(repaired);
  const all = [...own, ...others].slice(0, kMost);
  const kept = all.filter((c) => c.messages.length > 0);
  if (memory.set('conversations', kept)) return all;
  // Full: token probabilities are the bulk of it, then the oldest conversations.
  for (const c of kept) for (const m of c.messages) delete m.tokens;
  while (kept.length > 1 && !memory.set('conversations', kept)) kept.pop();
  return all;
}

// ---- exported ----

export function asMarkdown(c, model, system) {
  const parts = [`# ${title(c)}`, `*${model}*`];
  if (system) parts.push('## System', system);
  for (const m of path(c)) {
    parts.push({ user: '## Question', tool: '## Results' }[m.role] ?? '## Answer', m.content);
    for (const call of m.calls ?? []) parts.push(`Tool call \`${call.name}\`:`, '```json\n' + call.arguments + '\n```');
    if (m.error) parts.push(`*Failed: ${m.error}*`);
    else if (m.finish === 'length') parts.push('*Cut at the limit.*');
  }
  return parts.filter((p) => p !== '').join('\n\n') + '\n';
}

export function asJson(c, model, settings) {
  const messages = c.messages.map(({ id, parent, role, content, reasoning, calls, results, finish, error, stats, answer, tokens }) =>
    ({ id, parent, role, content, reasoning, calls, results, finish, error, stats, answer, tokens }));
  return JSON.stringify({ format: 'sluice-conversation', version: 1, title: title(c), model, settings, shown: path(c).map((m) => m.id), messages }, null, 2) + '\n';
}
