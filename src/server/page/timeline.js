// Steps on a time axis. Above the line the device: a bar from begin to end, as high as the step has
// tokens (square root, so that one decode is seen beside a full prompt). Below it the host: planning
// and completing. What lies between two bars while requests run is the host gap, shaded.
import { $, count, css, h, hideTip, legend, plural, showTip, surface, time } from './dom.js';

const kHeight = 190, kBase = 140, kTop = 12, kHost = 10, kLeft = 34, kKeep = 30000;
export const S = { id: 0, plan: 1, planned: 2, begin: 3, end: 4, done: 5, completed: 6, prefill: 7, decode: 8, slices: 9, running: 10, waiting: 11, available: 12 };

export class Timeline {
  constructor(onSelect) {
    this.steps = [];
    this.flights = [];  // steps that have not ended
    this.window = 4e6;  // us shown
    this.live = true;
    this.right = 0;     // time at the right edge
    this.offset = null; // server's clock less ours
    this.budget = 512;
    this.selected = 0;
    this.onSelect = onSelect;
    this.canvas = $('steps');
    this.listen();
    $('steps-legend').replaceChildren(...legend([['prefill', 'prompt tokens'], ['decode', 'decode tokens'], ['gap', 'host gap'], ['host', 'plan, complete']]));
  }

  // rows: completed steps. flights: [step, plan begin, plan end, prompt tokens, decode tokens, slices]
  add(rows, flights, now) {
    const offset = now - performance.now() * 1e3;
    // The earliest arrival is the truest: later ones were held up on the way.
    this.offset = this.offset == null || offset > this.offset ? offset : this.offset + (offset - this.offset) * 0.02;
    this.steps.push(...rows);
    this.flights = flights;
    if (this.steps.length > kKeep) this.steps.splice(0, this.steps.length - kKeep);
  }

  reset() {
    this.steps = [];
    this.flights = [];
    this.offset = null;
  }

  now() {
    return this.offset == null ? 0 : performance.now() * 1e3 + this.offset - 350e3;  // a frame behind, to move evenly
  }

  pause(on) {
    this.live = !on;
    $('steps-pause').textContent = on ? 'Live' : 'Pause';
    $('steps-pause').classList.toggle('on', on);
  }

  zoom(factor, at = 0.5) {
    const before = this.right - this.window * (1 - at);
    this.window = Math.min(6e7, Math.max(2e3, this.window * factor));
    if (!this.live) this.right = before + this.window * (1 - at);
    this.draw();
  }

  pan(us) {
    this.pause(true);
    this.right = Math.min(this.right + us, this.now() + this.window / 2);
    this.draw();
  }

  listen() {
    const c = this.canvas;
    $('steps-pause').onclick = () => this.pause(this.live);
    $('steps-in').onclick = () => this.zoom(0.5);
    $('steps-out').onclick = () => this.zoom(2);
    c.addEventListener('wheel', (e) => {
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan(e.deltaX / c.clientWidth * this.window);
      else this.zoom(Math.exp(e.deltaY * 0.002), this.live ? 1 : (e.offsetX - kLeft) / (c.clientWidth - kLeft));
    }, { passive: false });
    let from = null, moved = false;
    c.addEventListener('pointerdown', (e) => { from = e.clientX; moved = false; c.setPointerCapture(e.pointerId); });
    c.addEventListener('pointermove', (e) => {
      if (from != null && (moved || Math.abs(e.clientX - from) > 4)) {
        if (!moved) this.pause(true);
        moved = true;
        this.pan((from - e.clientX) / (c.clientWidth - kLeft) * this.window);
        from = e.clientX;
      } else if (from == null) {
        this.tip(e);
      }
    });
    c.addEventListener('pointerup', (e) => {
      if (from != null && !moved) this.select(this.at(e.offsetX));
      from = null;
    });
    c.addEventListener('pointerleave', hideTip);
    c.addEventListener('keydown', (e) => {
      const keys = {
        ArrowLeft: () => this.pan(-this.window / 8), ArrowRight: () => this.pan(this.window / 8),
        '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2),
        ' ': () => this.pause(this.live), Home: () => this.pause(false),
        Enter: () => this.select(this.at(kLeft + (c.clientWidth - kLeft) / 2, true)),
        '[': () => this.step(-1), ']': () => this.step(1),
      };
      if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
    });
  }

  step(by) {
    const i = this.steps.findIndex((s) => s[S.id] === this.selected);
    if (i >= 0 && this.steps[i + by]) this.select(this.steps[i + by]);
  }

  unselect() {
    this.selected = 0;
    this.draw();
  }

  // Steps that run now, as rows that end at `now`. When the device began one is not known before it
  // has ended: behind the one before it, or when it was launched.
  running(now) {
    let free = this.steps.at(-1)?.[S.end] ?? 0;
    return this.flights.map(([id, plan, planned, prefill, decode, slices]) => {
      const begin = Math.max(planned, free);
      free = Math.max(begin, now);
      return Object.assign([id, plan, planned, begin, free, free, free, prefill, decode, slices, 0, 0, 0], { open: true });
    }).filter((s) => s[S.begin] < now);
  }

  select(s) {
    if (!s || s.open) return;  // what runs has no story yet
    this.pause(true);
    this.selected = s[S.id];
    this.draw();
    this.onSelect(s);
  }

  // First step that ends after t.
  index(t) {
    let lo = 0, hi = this.steps.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.steps[mid][S.end] < t) lo = mid + 1; else hi = mid;
    }
    return lo;
  }

  // The step under x; with `any`, the nearest one that has ended.
  at(x, any = false) {
    const scale = this.window / (this.canvas.clientWidth - kLeft);
    const t = this.right - this.window + (x - kLeft) * scale;
    const i = this.index(t);
    const near = [this.steps[i - 1], this.steps[i], ...(any ? [] : this.running(this.now()))].filter(Boolean);
    const far = (s) => Math.max(s[S.begin] - t, t - s[S.end], 0);
    near.sort((a, b) => far(a) - far(b));
    return near[0] && (any || far(near[0]) < 4 * scale + 1000) ? near[0] : null;
  }

  tip(e) {
    const s = this.at(e.offsetX);
    if (!s) return hideTip();
    const row = (a, b) => h('tr', {}, h('td', {}, a), h('td', { class: 'num' }, b));
    if (s.open) {
      showTip(e.clientX, e.clientY, h('strong', {}, `Step ${count(s[S.id])}, running`), h('table', {},
        row('so far', time(s[S.end] - s[S.begin])), row('prompt tokens', count(s[S.prefill])), row('decode tokens', count(s[S.decode]))));
      return;
    }
    showTip(e.clientX, e.clientY, h('strong', {}, `Step ${count(s[S.id])}`), h('table', {},
      row('device', time(s[S.end] - s[S.begin])), row('prompt tokens', count(s[S.prefill])), row('decode tokens', count(s[S.decode])),
      row('plan', time(s[S.planned] - s[S.plan])), row('complete', time(s[S.completed] - s[S.done])), row('waiting', count(s[S.waiting]))));
  }

  draw() {
    if (this.live) this.right = this.now();
    const area = surface(this.canvas, kHeight);
    if (!area) return;
    const { g, width } = area;
    const left = this.right - this.window;
    const scale = (width - kLeft) / this.window;
    const X = (t) => kLeft + (t - left) * scale;
    const Y = (tokens) => Math.sqrt(Math.min(tokens, this.budget) / this.budget) * (kBase - kTop);
    const colour = { prefill: css('--prefill'), decode: css('--decode'), gap: css('--gap'), host: css('--host'), line: css('--line'), muted: css('--muted'), text: css('--text') };
    this.axes(g, width, colour, X, Y, left);

    const shown = [];
    for (let i = this.index(left); i < this.steps.length && this.steps[i][S.begin] < this.right; ++i) shown.push(this.steps[i]);
    for (const s of this.running(this.now())) if (s[S.begin] < this.right && s[S.end] > left) shown.push(s);
    g.save();
    g.beginPath();
    g.rect(kLeft, 0, width - kLeft, kHeight);
    g.clip();
    // A step planned before the last one ended, or with work waiting, makes the gap the host's.
    g.fillStyle = colour.gap;
    const gaps = [];
    let busy = 0;
    shown.forEach((s, i) => {
      busy += Math.min(s[S.end], this.right) - Math.max(s[S.begin], left);
      const before = shown[i - 1];
      if (!before || s.open) return;
      const gap = s[S.begin] - before[S.end];
      if (gap <= 0 || s[S.plan] > before[S.completed] + 2000) return;
      gaps.push(gap);
      if (gap * scale >= 0.4) g.fillRect(X(before[S.end]), kTop, gap * scale, kBase - kTop);
    });
    for (const s of shown) this.bar(g, s, X, Y, scale, colour);
    g.restore();
    if (!shown.length) {
      g.fillStyle = colour.muted;
      g.textAlign = 'center';
      g.fillText(this.lost ? 'No connection to the engine' : this.steps.length ? 'Idle: no step in this window' : 'Each step of the engine appears here as a bar', (width + kLeft) / 2, 92);
    }
    this.note(shown, gaps, busy, left);
  }

  bar(g, s, X, Y, scale, colour) {
    const from = Math.max(X(s[S.begin]), kLeft - 8);  // canvases do not like coordinates far outside
    const x = from, w = Math.max(Math.min(X(s[S.end]), this.canvas.clientWidth + 8) - from, 0.6);
    const inner = w > 3 ? w - 0.5 : w;
    const all = Math.max(Y(s[S.prefill] + s[S.decode]), 2);
    const part = all * s[S.decode] / Math.max(s[S.prefill] + s[S.decode], 1);
    const low = s[S.decode] ? Math.max(part, 2) : 0;
    g.globalAlpha = s.open ? 0.6 : 1;
    g.fillStyle = colour.prefill;
    if (s[S.prefill]) g.fillRect(x, kBase - Math.max(all, low + 2), inner, Math.max(all, low + 2) - low);
    g.fillStyle = colour.decode;
    if (s[S.decode]) g.fillRect(x, kBase - low, inner, low);
    g.globalAlpha = 1;
    g.fillStyle = colour.host;
    for (const [a, b] of [[S.plan, S.planned], [S.done, S.completed]])
      g.fillRect(X(s[a]), kBase + 5, Math.max((s[b] - s[a]) * scale, 0.6), kHost);
    if (s[S.id] === this.selected) {
      g.strokeStyle = colour.text;
      g.lineWidth = 1;
      g.strokeRect(x - 0.5, kBase - Math.max(all, low) - 2, Math.max(inner, 2) + 1, Math.max(all, low) + 2);
    }
  }

  axes(g, width, colour, X, Y, left) {
    g.strokeStyle = colour.line;
    g.fillStyle = colour.muted;
    g.lineWidth = 1;
    g.textAlign = 'right';
    g.textBaseline = 'middle';
    let last = 1e9;
    for (const n of [this.budget, this.budget / 4, this.budget / 16, this.budget / 128].map(Math.round).filter((v) => v >= 1)) {
      const y = Math.round(kBase - Y(n)) + 0.5;
      if (Math.abs(last - y) < 13) continue;
      last = y;
      g.beginPath();
      g.moveTo(kLeft, y);
      g.lineTo(width, y);
      g.stroke();
      g.fillText(count(n), kLeft - 5, y);
    }
    g.beginPath();
    g.moveTo(kLeft, kBase + 0.5);
    g.lineTo(width, kBase + 0.5);
    g.stroke();
    g.fillText('host', kLeft - 5, kBase + 5 + kHost / 2);
    // Marks at round times, about every 90 px; labelled by how long ago, or from the left edge when paused.
    const raw = this.window / Math.max(width / 90, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const tick = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
    g.textAlign = 'center';
    g.textBaseline = 'top';
    const from = this.live ? this.right : 0;
    for (let t = Math.ceil((left - from) / tick) * tick + from; t <= this.right; t += tick) {
      const x = Math.round(X(t)) + 0.5;
      if (x < kLeft) continue;
      g.beginPath();
      g.moveTo(x, kBase + 20);
      g.lineTo(x, kBase + 24);
      g.stroke();
      const label = this.live ? (t >= this.right - 1 ? 'now' : '−' + time(this.right - t)) : (t / 1e6).toFixed(tick < 1e4 ? 4 : tick < 1e6 ? 2 : 0) + ' s';
      const half = g.measureText(label).width / 2;
      g.fillText(label, Math.min(x, width - half - 1), kBase + 27);
    }
  }

  note(shown, gaps, busy, left) {
    $('steps-window').textContent = time(this.window).replace('.00', '');
    if (!shown.length) { $('steps-stats').textContent = ''; return; }
    gaps.sort((a, b) => a - b);
    const span = Math.min(shown.at(-1)[S.end], this.right) - Math.max(shown[0][S.begin], left);
    const parts = [plural(shown.length, 'step'), `device ${(100 * busy / Math.max(span, 1)).toFixed(1)} % busy`];
    const long = shown.find((s) => s[S.begin] <= left && s[S.end] >= this.right);
    if (long) parts.push(`step ${count(long[S.id])} longer than the window: ${time(long[S.end] - long[S.begin])}${long.open ? ' so far' : ''}`);
    if (gaps.length) parts.push(`gap p50 ${time(gaps[gaps.length >> 1])}`);
    $('steps-stats').textContent = parts.join(' · ');
  }
}
