// What is asked for beside the messages: system prompt, tools, form of the answer, sampling, stop strings.
import { $, h, memory } from './dom.js';

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

export const settings = { system: '', schema: '', tools: '', values: {}, stop: '', probabilities: false, ...memory.get('settings', {}) };

function parsed(text) {
  try { return JSON.parse(text); } catch { return text; }
}

// The fields of a request that they become.
export function sampling() {
  const body = {};
  for (const [name] of kParameters) {
    const v = settings.values[name];
    if (v !== undefined && v !== '' && isFinite(v)) body[name] = Number(v);
  }
  const stops = settings.stop.split('\n').map((s) => s.replace(/\\n/g, '\n')).filter(Boolean);
  if (stops.length) body.stop = stops;
  // As text where it is no JSON: the server says what is wrong with it.
  if (settings.schema.trim()) body.json_schema = settings.schema;
  if (settings.tools.trim()) body.tools = parsed(settings.tools);
  return body;
}

// What the server takes for an empty field, from /v1/models: shown as the field's hint.
let defaults = {};
export function showDefaults(values) {
  defaults = values ?? {};
  for (const [name, , , o] of kParameters) {
    const input = $('p-' + name);
    if (input) input.placeholder = hint(name, o);
  }
}
const hint = (name, o) => String(defaults[name] ?? o.hint);

const keep = () => memory.set('settings', settings);

function area(name, rows, hint) {
  const e = h('textarea', { rows, id: 'p-' + name, placeholder: hint, oninput: () => { settings[name] = e.value; keep(); } });
  e.value = settings[name];
  return e;
}

// `changed`: what is shown depends on it.
export function showSettings(changed) {
  const fields = kParameters.map(([name, label, what, o]) => {
    const input = h('input', { type: 'number', id: 'p-' + name, min: o.min, max: o.max, step: o.step, placeholder: hint(name, o), title: what,
      oninput: () => { settings.values[name] = input.value; keep(); } });
    input.value = settings.values[name] ?? '';
    return h('label', { title: what }, h('span', {}, label), input);
  });
  const probabilities = h('input', { type: 'checkbox', id: 'p-probabilities', onchange: () => {
    settings.probabilities = probabilities.checked;
    keep();
    changed();
  } });
  probabilities.checked = settings.probabilities;
  const reset = h('button', { class: 'quiet small', onclick: () => {
    settings.values = {};
    settings.stop = '';
    keep();
    showSettings(changed);
  } }, 'Reset sampling');
  $('settings').replaceChildren(
    h('label', { class: 'tall' }, h('span', {}, 'System prompt'), area('system', '4', 'None')),
    h('label', { class: 'check' }, probabilities, h('span', {}, 'Token probabilities')),
    h('p', { class: 'muted small' }, 'Tokens are tinted by how unlikely they were; hover for the alternatives.'),
    h('label', { class: 'tall' }, h('span', {}, 'JSON schema'), area('schema', '3', 'Any text')),
    h('p', { class: 'muted small' }, 'Answers are JSON that is valid by it. Say in the question what it should hold.'),
    h('label', { class: 'tall' }, h('span', {}, 'Tools'), area('tools', '3', 'None')),
    h('p', { class: 'muted small' }, 'A JSON list as in the API. Calls are shown; you give their results.'),
    h('h3', {}, 'Sampling'), ...fields,
    h('label', { class: 'tall' }, h('span', {}, 'Stop strings'), area('stop', '2', 'One per line; \\n is a line break')),
    h('p', { class: 'muted small' }, 'An empty field leaves the choice to the server.'), reset);
}
