// Where a request's time went, and what a step computed: panels that the server's words fill.
import { $, count, h, number, percent, plural, time } from './dom.js';
import { call } from './api.js';

const kLive = new Set(['waiting', 'prefill', 'decode', 'preempted']);
const kParts = { prepare: 'parse', compile: 'parse', fetch: 'queue', queued: 'queue', prefill: 'prefill', decode: 'decode', crowded: 'crowded', preempted: 'preempted', others: 'others', gaps: 'gaps', delivery: 'delivery' };

let told = null;          // what was asked for: a request's number, or the id of an answer
let toldRequest = 0;      // its number, once known
let changed = () => {};

// `onChange` is called when another request is told of, or none.
export function startStories(onChange) { changed = onChange; }
export const storyOf = () => toldRequest;

export function closeStory() {
  told = null;
  toldRequest = 0;
  $('story').hidden = true;
  if (location.hash.startsWith('#engine/')) history.replaceState(null, '', '#engine');
  changed();
}

function bars(s, total) {
  const bar = h('div', { class: 'stack', 'aria-hidden': 'true' });
  for (const p of s.parts.filter((x) => x.seconds > 0)) {
    const piece = h('i', { class: 'key ' + kParts[p.kind], title: `${p.what}: ${time(p.seconds * 1e6)}` });
    piece.style.width = `${100 * p.seconds / total}%`;
    bar.append(piece);
  }
  const waterfall = h('div', { class: 'waterfall', 'aria-hidden': 'true', title: 'its steps in time' });
  for (const [kind, from, to] of s.timeline) {
    const piece = h('i', { class: 'key ' + kParts[kind] });
    piece.style.left = `${100 * from / total}%`;
    piece.style.width = `${Math.max(100 * (to - from) / total, 0.15)}%`;
    waterfall.append(piece);
  }
  return [bar, waterfall];
}

function company(s) {
  if (!s.with.length) return [h('p', { class: 'muted' }, 'It had all its steps to itself.')];
  const head = ['Request', 'Steps together', 'Its prompt tokens', 'Its decodes'].map((t) => h('th', { class: 'num' }, t));
  const row = (n) => h('tr', {}, h('td', { class: 'num' }, h('button', { class: 'inline', onclick: () => tellStory(n.request) }, String(n.request))),
    ...[n.steps, n.prefill_tokens, n.decode_tokens].map((v) => h('td', { class: 'num' }, count(v))));
  const more = s.num_with - s.with.length;
  return [h('table', {}, h('thead', {}, h('tr', {}, ...head)), h('tbody', {}, ...s.with.map(row))),
    more > 0 ? h('p', { class: 'muted small' }, `and ${count(more)} more`) : null];
}

// `id`: a request's number, or the id of an answer. `again`: the same story, later.
export async function tellStory(id, again = false) {
  told = id;
  let s;
  try {
    s = await (await call('/dashboard/request/' + encodeURIComponent(id))).json();
  } catch (e) {
    s = { error: e.status ? e.message : 'The server cannot be reached.' };
  }
  if (told !== id) return;
  toldRequest = s.request ?? 0;
  const panel = $('story');
  panel.hidden = false;
  const title = h('h2', { tabindex: '-1' }, s.request ? `Request ${s.request}` : 'Request');
  const head = h('header', {}, title, h('span', { class: 'grow' }), h('button', { class: 'quiet', onclick: closeStory }, 'Close'));
  changed();
  if (s.error) {
    panel.replaceChildren(head, h('p', { class: 'error' }, s.error));
  } else {
    const total = Math.max(s.seconds, 1e-9);
    const part = (p) => h('tr', { class: p.seconds > 0 ? '' : 'muted' },
      h('td', {}, h('i', { class: 'key ' + kParts[p.kind] }), p.what), h('td', { class: 'num' }, time(p.seconds * 1e6)), h('td', { class: 'num' }, percent(p.share)));
    const parts = h('table', { class: 'parts' }, ...s.parts.map(part),
      h('tr', { class: 'sum' }, h('td', {}, 'in all'), h('td', { class: 'num' }, time(total * 1e6)), h('td', { class: 'num' }, '100 %')));
    panel.replaceChildren(head, h('div', { class: 'sentences' }, ...s.sentences.map((t) => h('p', {}, t))), ...bars(s, total),
      h('div', { class: 'columns' }, h('div', {}, h('h3', {}, 'Where its time went'), parts), h('div', {}, h('h3', {}, 'Computed together with'), ...company(s).filter(Boolean))));
  }
  if (!again) {
    panel.scrollIntoView({ block: 'nearest' });
    title.focus({ preventScroll: true });
  }
  if (kLive.has(s.state)) setTimeout(() => { if (told === id && !$('engine').hidden) tellStory(id, true); }, 1000);
}

// `step`: its number. `onClose` is called when the panel is closed.
export async function tellStep(step, onClose) {
  const box = $('step-detail');
  let s;
  try {
    s = await (await call('/dashboard/step/' + step)).json();
  } catch (e) {
    box.hidden = false;
    box.replaceChildren(h('p', { class: 'error' }, e.message));
    return;
  }
  box.hidden = false;
  const times = [['plan', s.plan_us], ['waits for the step before', s.wait_us], ['device', s.device_us], ['complete', s.complete_us]];
  const tokens = s.prefill_tokens + s.decode_tokens;
  const facts = [`${plural(s.num_slices, 'slice')}, ${plural(tokens, 'token')} (${count(s.prefill_tokens)} prompt, ${count(s.decode_tokens)} decode)`,
    ...times.map(([n, us]) => `${n} ${time(Math.max(us, 0))}`), `${number(tokens / s.device_us * 1e6)} tokens/s`];
  const slice = (x) => h('button', { class: 'slice ' + (x.prefill ? 'prefill' : 'decode'), onclick: () => tellStory(x.request),
    title: x.prefill ? `positions ${x.pos} to ${x.pos + x.count - 1}` : `position ${x.pos}` },
  h('b', { class: 'num' }, x.request + (x.choice ? '.' + x.choice : '')), h('span', { class: 'num' }, x.prefill ? `${count(x.pos)}–${count(x.pos + x.count)}` : `@${count(x.pos)}`));
  box.replaceChildren(
    h('header', {}, h('h3', {}, `Step ${count(step)}`), h('span', { class: 'muted small num' }, facts.join(' · ')),
      h('span', { class: 'grow' }), h('button', { class: 'quiet', onclick: () => { box.hidden = true; onClose(); } }, 'Close')),
    s.slices.length ? h('div', { class: 'slices' }, ...s.slices.map(slice)) : h('p', { class: 'muted' }, 'Its slices are no longer known.'));
}
