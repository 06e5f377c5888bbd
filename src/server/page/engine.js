// The dashboard: one stream of events, drawn as steps, charts, blocks and requests.
import { $, bytes, count, h, number, percent, plural, time } from './dom.js';
import { call, events } from './api.js';
import { BlockMap } from './blocks.js';
import { Chart } from './charts.js';
import { S, Timeline } from './timeline.js';

// Of a request's row.
const R = { id: 0, state: 1, key: 2, arrival: 3, prompt: 4, cached: 5, output: 6, most: 7, preempted: 8, choices: 9, ttft: 10, total: 11 };
// Of a second's row.
const C = { second: 0, output: 1, prefill: 2, finished: 3, ttft50: 4, ttft95: 5, itl50: 6, itl95: 7, running: 8, waiting: 9, busy: 10 };
const kLive = new Set(['waiting', 'prefill', 'decode', 'preempted']);

let timeline, blocks, charts;
let visible = false, watching = null, onLink = () => {};
let seconds = new Map(), gauges = new Map();  // by second
let frame = null, hello = null;
let story = null;  // {kind, id} of what is explained
const tiles = {};

// ---- the stream ----

export async function watchEngine(on, link) {
  visible = on;
  if (link) onLink = link;
  if (!on) {
    watching?.abort();
    watching = null;
    return;
  }
  if (watching) return;
  const mine = watching = new AbortController();
  requestAnimationFrame(paint);
  for (let pause = 500; watching === mine; pause = Math.min(pause * 2, 8000)) {
    try {
      const response = await call('/dashboard/events', { signal: mine.signal });
      pause = 500;
      for await (const { event, data } of events(response)) {
        const value = JSON.parse(data);
        if (event === 'hello') greet(value);
        else if (event === 'frame') take(value);
        else if (event === 'bye') onLink('lost', value.reason);
      }
      onLink('lost', 'the stream ended');
    } catch (e) {
      if (watching !== mine) return;
      onLink('lost', e.status ? e.message : 'no connection');
      if (e.status === 401) { watching = null; return; }
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

function greet(value) {
  hello = value;
  seconds = new Map();
  gauges = new Map();
  timeline.reset();
  timeline.budget = value.budget;
  onLink('live', 'live');
  $('model').textContent = value.model;
  const facts = [value.device, `${value.preset} · ${value.pipeline} · ${value.order}`, `budget ${count(value.budget)} tokens a step${value.chunk ? `, ${count(value.chunk)} of prompts beside decodes` : ''}`,
    `${count(value.max_seqs)} sequences of ${count(value.max_len)}`, `KV ${count(value.num_blocks)} blocks of ${value.block_size} (${bytes(value.kv_bytes)})`,
    `weights ${bytes(value.weights_bytes)}`, `prefix cache ${value.prefix_cache ? 'on' : 'off'}`, `sluice ${value.version}`];
  $('facts').replaceChildren(...facts.map((f) => h('span', {}, f)));
}

function take(value) {
  frame = value;
  timeline.add(value.steps, value.now);
  for (const row of value.seconds) seconds.set(row[C.second], row);
  holdGauges(value);
  const oldest = Math.floor(value.now / 1e6) - 260;
  for (const s of seconds.keys()) if (s < oldest) seconds.delete(s);
  if (value.blocks) blocks.set(value.blocks);
  if (value.hits) blocks.hit(value.hits);
  showTiles();
  drawCharts();
  showRequests();
}

// Seconds without a completed step have no row; what ran and waited in them is known from frames.
function holdGauges(value) {
  const second = Math.floor(value.now / 1e6);
  const [running, waiting] = [value.totals[7], value.totals[8]];
  const now = gauges.get(second) ?? [0, 0];
  gauges.set(second, [Math.max(now[0], running), Math.max(now[1], waiting)]);
  for (const [s, [r, w]] of gauges) {
    if (s >= second) break;
    const row = seconds.get(s) ?? [s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    row[C.running] = Math.max(row[C.running], r);
    row[C.waiting] = Math.max(row[C.waiting], w);
    seconds.set(s, row);
    if (s < second - 3) gauges.delete(s);
  }
}

// ---- drawing ----

let painted = 0;
function paint(t) {
  if (!visible) return;
  requestAnimationFrame(paint);
  if (document.hidden || t - painted < 33) return;
  painted = t;
  if (timeline.live) timeline.draw();
  blocks.draw();
}

function redraw() {
  timeline.draw();
  blocks.dirty = true;
  blocks.draw();
  drawCharts();
}

function drawCharts() {
  const last = Math.floor((frame?.now ?? 0) / 1e6) - 1;
  for (const c of charts) c.draw(seconds, last);
}

const kTiles = [
  ['output', 'Output', 'tokens generated per second, over the last five'],
  ['prefill', 'Prompts', 'prompt tokens computed per second, over the last five'],
  ['ttft', 'Time to first token', 'p50 and p99 of the last minute'],
  ['itl', 'Between tokens', 'p50 and p99 of the last minute'],
  ['queue', 'Running, waiting', 'sequences now'],
  ['kv', 'KV in use', 'blocks held by sequences'],
  ['hits', 'Prefix hits', 'share of prompt tokens found in the prefix cache'],
  ['preemptions', 'Preemptions', 'sequences put back for want of blocks, since the start'],
];

function makeTiles() {
  $('tiles').replaceChildren(...kTiles.map(([name, label, what]) => {
    tiles[name] = h('span', { class: 'value num' }, '–');
    return h('div', { class: 'tile', title: what }, h('span', { class: 'muted small' }, label), tiles[name]);
  }));
}

function setTile(name, value, unit = '', second = '') {
  tiles[name].replaceChildren(value, h('small', {}, unit ? ' ' + unit : ''), second ? h('small', { class: 'muted' }, ' ' + second) : '');
}

function showTiles() {
  const [, , , finished, preemptions, queries, hits, running, waiting, available] = frame.totals;
  const last = Math.floor(frame.now / 1e6) - 1;
  let output = 0, prefill = 0;
  for (let t = last - 4; t <= last; ++t) {
    output += seconds.get(t)?.[C.output] ?? 0;
    prefill += seconds.get(t)?.[C.prefill] ?? 0;
  }
  const { ttft, itl } = frame.latency;
  setTile('output', number(output / 5), 'tokens/s');
  setTile('prefill', number(prefill / 5), 'tokens/s');
  setTile('ttft', ttft.count ? time(ttft.p50 * 1e6) : '–', '', ttft.count ? `p99 ${time(ttft.p99 * 1e6)}` : '');
  setTile('itl', itl.count ? time(itl.p50 * 1e6) : '–', '', itl.count ? `p99 ${time(itl.p99 * 1e6)}` : '');
  setTile('queue', count(running), '', `${count(waiting)} waiting`);
  const total = hello?.num_blocks || 1;
  setTile('kv', percent(1 - available / total), '', `${count(total - available)} of ${count(total)}`);
  setTile('hits', queries ? percent(hits / queries) : '–', '', queries ? `of ${count(queries)}` : '');
  setTile('preemptions', count(preemptions), '', `${count(finished)} requests done`);
}

// ---- requests ----

const kColumns = [
  ['Request', (r) => r[R.id]],
  ['State', (r) => h('span', { class: 'state ' + (kLive.has(r[R.state]) ? r[R.state] : 'done') }, r[R.state])],
  ['Age', (r, now) => time(now - r[R.arrival])],
  ['Took', (r) => (r[R.total] >= 0 ? time(r[R.total]) : '')],
  ['First token', (r) => (r[R.ttft] >= 0 ? time(r[R.ttft]) : '')],
  ['Prompt', (r) => count(r[R.prompt])],
  ['Cached', (r) => (r[R.cached] ? count(r[R.cached]) : '')],
  ['Output', (r) => count(r[R.output]) + (r[R.choices] > 1 ? ` ×${r[R.choices]}` : '')],
  ['Tokens/s', (r, now) => {
    const since = (r[R.total] >= 0 ? r[R.total] : now - r[R.arrival]) - r[R.ttft];
    return r[R.ttft] >= 0 && r[R.output] > 1 && since > 0 ? number((r[R.output] - r[R.choices]) / since * 1e6) : '';
  }],
  ['Put back', (r) => r[R.preempted] || ''],
  ['Key', (r) => (r[R.key] >= 0 ? '#' + (r[R.key] + 1) : '')],
];

function makeTable() {
  $('requests').tHead.replaceChildren(h('tr', {}, ...kColumns.map(([label], i) => h('th', { class: i === 1 ? '' : 'num' }, label))));
  const open = (e) => {
    const row = e.target.closest('tr');
    if (row?.dataset.id) explain(+row.dataset.id);
  };
  const body = $('requests').tBodies[0];
  body.addEventListener('click', open);
  body.addEventListener('keydown', (e) => {
    const row = e.target.closest('tr');
    if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); open(e); }
    if (e.key === 'ArrowDown') { e.preventDefault(); row?.nextSibling?.focus(); }
    if (e.key === 'ArrowUp') { e.preventDefault(); row?.previousSibling?.focus(); }
  });
}

function showRequests() {
  const body = $('requests').tBodies[0];
  const list = frame.requests;
  $('requests-empty').hidden = list.length > 0;
  $('requests').hidden = list.length === 0;
  const old = new Map([...body.rows].map((r) => [+r.dataset.id, r]));
  list.forEach((r, i) => {
    let row = old.get(r[R.id]);
    old.delete(r[R.id]);
    if (!row) {
      row = h('tr', { tabindex: '-1', 'data-id': r[R.id] }, ...kColumns.map((_, k) => h('td', { class: k === 1 ? '' : 'num' })));
    }
    kColumns.forEach(([, cell], k) => {
      const made = cell(r, frame.now);
      const text = made.textContent ?? String(made);
      if (row.cells[k].textContent !== text) row.cells[k].replaceChildren(made);
    });
    row.tabIndex = i === 0 ? 0 : -1;
    row.classList.toggle('on', story?.kind === 'request' && story.id === r[R.id]);
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
  });
  for (const row of old.values()) row.remove();
  const live = list.filter((r) => kLive.has(r[R.state])).length;
  const more = frame.live - live;
  $('requests-note').textContent = `${count(frame.live)} live${more > 0 ? `, ${count(more)} of them not shown` : ''}`;
}

// ---- explanations ----

const kParts = { prepare: 'parse', queued: 'queue', prefill: 'prefill', decode: 'decode', crowded: 'crowded', preempted: 'preempted', others: 'others', gaps: 'gaps', delivery: 'delivery' };

function close() {
  story = null;
  $('story').hidden = true;
  if (frame) showRequests();
}

async function explain(id, again = false) {
  story = { kind: 'request', id };
  let s;
  try {
    s = await (await call('/dashboard/request/' + id)).json();
  } catch (e) {
    s = { error: e.message };
  }
  if (story?.id !== id) return;
  const panel = $('story');
  panel.hidden = false;
  const head = h('header', {}, h('h2', {}, `Request ${id}`), h('span', { class: 'grow' }), h('button', { class: 'quiet', onclick: close }, 'Close'));
  if (s.error) {
    panel.replaceChildren(head, h('p', { class: 'error' }, s.error));
    return;
  }
  const total = Math.max(s.seconds, 1e-9);
  const used = s.parts.filter((p) => p.seconds > 0);
  const bar = h('div', { class: 'stack', 'aria-hidden': 'true' });
  for (const p of used) {
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
  const parts = h('table', { class: 'parts' }, ...s.parts.map((p) => h('tr', { class: p.seconds > 0 ? '' : 'muted' },
    h('td', {}, h('i', { class: 'key ' + kParts[p.kind] }), p.what), h('td', { class: 'num' }, time(p.seconds * 1e6)), h('td', { class: 'num' }, percent(p.share)))),
    h('tr', { class: 'sum' }, h('td', {}, 'in all'), h('td', { class: 'num' }, time(total * 1e6)), h('td', { class: 'num' }, '100 %')));
  const company = s.with.length ? h('table', {}, h('thead', {}, h('tr', {}, h('th', { class: 'num' }, 'Request'), h('th', { class: 'num' }, 'Steps together'), h('th', { class: 'num' }, 'Its prompt tokens'), h('th', { class: 'num' }, 'Its decodes'))),
    h('tbody', {}, ...s.with.map((n) => h('tr', {}, h('td', { class: 'num' }, h('button', { class: 'inline', onclick: () => explain(n.request) }, String(n.request))),
      h('td', { class: 'num' }, count(n.steps)), h('td', { class: 'num' }, count(n.prefill_tokens)), h('td', { class: 'num' }, count(n.decode_tokens))))))
    : h('p', { class: 'muted' }, 'It had all its steps to itself.');
  const more = s.num_with > s.with.length ? h('p', { class: 'muted small' }, `and ${count(s.num_with - s.with.length)} more`) : null;
  panel.replaceChildren(head, h('div', { class: 'sentences' }, ...s.sentences.map((t) => h('p', {}, t))), bar, waterfall,
    h('div', { class: 'columns' }, h('div', {}, h('h3', {}, 'Where its time went'), parts), h('div', {}, h('h3', {}, 'Computed together with'), company, more)));
  showRequests();
  if (!again) panel.scrollIntoView({ block: 'nearest', behavior: 'smooth' });
  if (kLive.has(s.state)) setTimeout(() => { if (story?.kind === 'request' && story.id === id && visible) explain(id, true); }, 1000);
}

async function explainStep(step) {
  const id = step[S.id];
  const box = $('step-detail');
  let s;
  try {
    s = await (await call('/dashboard/step/' + id)).json();
  } catch (e) {
    box.hidden = false;
    box.replaceChildren(h('p', { class: 'error' }, e.message));
    return;
  }
  box.hidden = false;
  const times = [['plan', s.plan_us], ['waits for the step before', s.wait_us], ['device', s.device_us], ['complete', s.complete_us]];
  const tokens = s.prefill_tokens + s.decode_tokens;
  box.replaceChildren(
    h('header', {}, h('h3', {}, `Step ${count(id)}`),
      h('span', { class: 'muted small num' }, [`${plural(s.num_slices, 'slice')}, ${plural(tokens, 'token')} (${count(s.prefill_tokens)} prompt, ${count(s.decode_tokens)} decode)`,
        ...times.map(([n, us]) => `${n} ${time(Math.max(us, 0))}`), `${number(tokens / s.device_us * 1e6)} tokens/s`].join(' · ')),
      h('span', { class: 'grow' }), h('button', { class: 'quiet', onclick: () => { box.hidden = true; timeline.selected = 0; timeline.draw(); } }, 'Close')),
    s.slices.length ? h('div', { class: 'slices' }, ...s.slices.map((x) => h('button', { class: 'slice ' + (x.prefill ? 'prefill' : 'decode'), onclick: () => explain(x.request),
      title: x.prefill ? `positions ${x.pos} to ${x.pos + x.count - 1}` : `position ${x.pos}` },
    h('b', { class: 'num' }, x.request + (x.choice ? '.' + x.choice : '')), h('span', { class: 'num' }, x.prefill ? `${count(x.pos)}–${count(x.pos + x.count)}` : `@${count(x.pos)}`))))
      : h('p', { class: 'muted' }, 'Its slices are no longer known.'));
}

export function startEngine() {
  timeline = new Timeline(explainStep);
  blocks = new BlockMap();
  makeTiles();
  makeTable();
  const perSecond = (v) => (v >= 1e4 ? `${number(v / 1e3)}k` : v >= 10 ? count(v) : String(+v.toFixed(1)));
  charts = [
    new Chart('Throughput, tokens/s', [['decode', 'output', C.output, true], ['prefill', 'prompts', C.prefill, true]], perSecond),
    new Chart('Time to first token', [['p50', 'p50', C.ttft50], ['p95', 'p95', C.ttft95]], time),
    new Chart('Between tokens', [['p50', 'p50', C.itl50], ['p95', 'p95', C.itl95]], time),
    new Chart('Sequences', [['decode', 'running', C.running, true], ['queue', 'waiting', C.waiting, true]], perSecond),
  ];
  $('charts').replaceChildren(...charts.map((c) => c.element));
  new ResizeObserver(redraw).observe($('engine'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  document.addEventListener('theme', redraw);
}
