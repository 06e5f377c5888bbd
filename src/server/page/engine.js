// The dashboard: one stream of events, drawn as steps, charts, blocks and requests.
import { $, bytes, count, h, number, percent, plural, time } from './dom.js';
import { call, events } from './api.js';
import { BlockMap } from './blocks.js';
import { Chart } from './charts.js';
import { makeTable, showRequests } from './requests.js';
import { startStories, storyOf, tellStep, tellStory } from './story.js';
import { S, Timeline } from './timeline.js';

// Of a second's row.
const C = { second: 0, output: 1, prefill: 2, finished: 3, ttft50: 4, ttft95: 5, itl50: 6, itl95: 7, running: 8, waiting: 9, busy: 10 };

let timeline, blocks, charts;
let visible = false, watching = null, onLink = () => {};
let seconds = new Map(), gauges = new Map();  // by second
let frame = null, hello = null;
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
        else if (event === 'bye') lost(value.reason);
      }
      lost('the stream ended');
    } catch (e) {
      if (watching !== mine) return;
      lost(e.status ? e.message : 'no connection');
      if (e.status === 401) { watching = null; return; }
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

// What is drawn stays, and is said to be old.
function lost(why) {
  onLink('lost', why);
  timeline.lost = true;
  $('state').className = 'small state';
  $('state').textContent = 'not connected';
}

function greet(value) {
  timeline.lost = false;
  hello = value;
  seconds = new Map();
  gauges = new Map();
  timeline.reset();
  timeline.budget = value.budget;
  tiles.slo.parentElement.style.display = value.slo ? '' : 'none';
  onLink('live', 'live');
  $('model').textContent = value.model;
  const facts = [value.device, `${value.preset} · ${value.pipeline} · ${value.order}`, `budget ${count(value.budget)} tokens a step`,
    ...beside(value), `${count(value.max_seqs)} sequences of ${count(value.max_len)}`, `KV ${count(value.num_blocks)} blocks of ${value.block_size} (${bytes(value.kv_bytes)})`,
    `weights ${bytes(value.weights_bytes)}`, `${value.allocator} KV · prefix cache ${value.prefix_cache ? 'on' : 'off'}`, `sluice ${value.version}`];
  $('facts').replaceChildren(...facts.map((f) => h('span', {}, f)));
}

// The limits of steps that run prompts beside decodes.
function beside({ mixed_budget: mixed, chunk, short_share: share, slo }) {
  if (slo) return [`slo ${slo}`, `short share ${share ? percent(share) : 'off'}`];
  return [`mixed budget ${mixed ? count(mixed) : 'off'}`, `chunk ${chunk ? count(chunk) : 'off'}`, `short share ${share ? percent(share) : 'off'}`];
}

function take(value) {
  frame = value;
  timeline.add(value.steps, value.in_flight, value.now);
  showState();
  for (const row of value.seconds) seconds.set(row[C.second], row);
  holdGauges(value);
  const oldest = Math.floor(value.now / 1e6) - 260;
  for (const s of seconds.keys()) if (s < oldest) seconds.delete(s);
  if (value.blocks) blocks.set(value.blocks);
  if (value.hits) blocks.hit(value.hits);
  showTiles();
  drawCharts();
  showRequests(value, storyOf());
}

// One line that says whether the engine works: idle and since when, or what it has at hand.
function showState() {
  const [running, waiting] = [frame.totals[7], frame.totals[8]];
  const last = timeline.steps.at(-1);
  const state = $('state');
  state.className = 'small state ' + (frame.live ? 'decode' : 'idle');
  if (frame.live) state.textContent = running || waiting ? `${count(running)} running, ${count(waiting)} waiting` : 'busy';
  else state.textContent = last ? `Idle for ${time(Math.max(Math.floor((frame.now - last[S.end]) / 1e6), 0) * 1e6).replace(/\.\d+/, '').replace('0 µs', '0 s')}` : 'Idle: no request yet';
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
  ['slo', 'Prompt tokens beside decodes', 'chosen each step by --slo; how far the last step was from its predicted time; tokens beyond the target'],
  ['tiers', 'Blocks out, in', 'KV blocks moved to slower memory or disk and back, since the start'],
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
  const [, , , finished, preemptions, queries, hits, running, waiting, available, out = 0, back = 0, fetched = 0, disk = 0] = frame.totals;
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
  setTile('preemptions', count(preemptions), '', `${plural(finished, 'request')} done`);
  if (frame.slo) {
    const [tokens, predicted, took, late] = frame.slo;
    const off = predicted ? `, step ${time(took)}, ${percent(Math.abs(predicted - took) / took)} off` : '';
    setTile('slo', count(tokens), '', `${percent(late / 1e6)} late${off}`);
  }
  setTile('tiers', out + back > 0 ? `${count(out)}, ${count(back)}` : '–', '', fetched ? `${count(fetched)} tokens of prefixes${disk ? `, ${count(disk)} from disk` : ''}` : '');
}

export function startEngine() {
  timeline = new Timeline((step) => tellStep(step[S.id], () => timeline.unselect()));
  blocks = new BlockMap();
  makeTiles();
  makeTable(tellStory);
  startStories(() => { if (frame) showRequests(frame, storyOf()); });
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
