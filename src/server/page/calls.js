// Tool calls of an answer as boxes, and the results that a person gives for them.
import { h } from './dom.js';
import { markdown } from './markdown.js';

// Arguments come in pieces: as they came until they are whole, then with their lines broken. Also as they came where
// reading and writing them would change them, as it does large numbers.
function argumentNodes(text) {
  const tight = (s) => s.replace(/\s+/g, '');
  try {
    const lines = JSON.stringify(JSON.parse(text), null, 2);
    if (tight(lines) === tight(text)) return markdown('```json\n' + lines + '\n```');
  } catch { /* not whole */ }
  return [h('p', { class: 'plain mono' }, text)];
}

const box = (kind, what, name, nodes) => h('section', { class: 'call ' + kind, 'aria-label': `${what} ${name}` },
  h('p', { class: 'call-head' }, h('span', { class: 'muted small' }, what), ' ', h('b', {}, name)), ...nodes);

export const callBoxes = (calls) => calls.map((c) => box('asked', 'Tool call', c.name, c.arguments ? argumentNodes(c.arguments) : []));

export const resultBoxes = (results) => results.map((r) => box('result', 'Result of', r.name, [h('p', { class: 'plain mono' }, r.content)]));

// What was typed as results, by message id: the form is made again whenever the messages are.
const drafts = new Map();

// One field per call of the message `id`; `send` gets [{id, name, content}].
export function resultForm(id, calls, send) {
  const draft = drafts.get(id) ?? [];
  const areas = calls.map((c, i) => {
    const area = h('textarea', { rows: '2', placeholder: `Result of ${c.name}`, 'aria-label': `Result of ${c.name}` });
    area.value = draft[i] ?? '';
    area.addEventListener('input', () => drafts.set(id, areas.map((a) => a.value)));
    return area;
  });
  return h('form', { class: 'results', onsubmit: (e) => {
    e.preventDefault();
    drafts.delete(id);
    send(calls.map(({ id, name }, i) => ({ id, name, content: areas[i].value })));
  } }, ...areas, h('p', { class: 'right' }, h('button', { class: 'main' }, calls.length > 1 ? 'Send results' : 'Send result')));
}
