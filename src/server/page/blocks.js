// The KV pool, one cell per block (or several), and flashes where a prefix was found.
import { $, count, css, h, hideTip, showTip, surface } from './dom.js';

const kNames = { f: 'free', c: 'cached', o: 'owned', s: 'shared', p: 'pending' };
const kMeaning = { free: 'nothing in it', cached: 'idle, kept for its prefix', owned: 'one sequence', shared: 'several sequences', pending: 'freed when the step in flight ends' };
const kFlash = 1500;

export class BlockMap {
  constructor() {
    this.cells = new Uint8Array(0);
    this.scale = 1;
    this.total = 0;
    this.flashes = new Map();
    this.canvas = $('blocks');
    this.dirty = true;
    this.canvas.addEventListener('pointermove', (e) => this.tip(e));
    this.canvas.addEventListener('pointerleave', hideTip);
    this.legend([0, 0, 0, 0, 0]);
  }

  set({ runs, counts, scale }) {
    const cells = [];
    for (const [, letter, n] of runs.matchAll(/([a-z])(\d*)/g)) {
      const code = letter.charCodeAt(0);
      for (let k = n ? +n : 1; k > 0; --k) cells.push(code);
    }
    this.cells = Uint8Array.from(cells);
    this.scale = scale;
    this.total = counts.reduce((a, b) => a + b, 0);
    this.legend(counts);
    this.dirty = true;
  }

  hit(blocks) {
    const now = performance.now();
    for (const b of blocks) this.flashes.set(Math.floor(b / this.scale), now);
    this.dirty = true;
  }

  legend(counts) {
    $('blocks-legend').replaceChildren(...Object.values(kNames).map((name, i) => h('span', { title: kMeaning[name] },
      h('i', { class: 'key ' + name }), `${name} `, h('b', { class: 'num' }, count(counts[i])))),
      h('span', { title: 'a prompt was found here' }, h('i', { class: 'key hit' }), 'prefix hit'));
    $('blocks-note').textContent = this.scale > 1 ? `a cell is ${this.scale} blocks` : '';
  }

  layout() {
    const width = this.canvas.clientWidth, n = Math.max(this.cells.length, 1);
    let size = 3;
    for (const s of [16, 14, 12, 10, 8, 7, 6, 5, 4]) {
      if (Math.ceil(n / Math.floor(width / s)) * s <= 230) { size = s; break; }
    }
    const columns = Math.max(1, Math.floor(width / size));
    return { size, columns, height: Math.max(Math.ceil(n / columns) * size, 20) };
  }

  draw() {
    if (!this.dirty) return;
    const { size, columns, height } = this.layout();
    const area = surface(this.canvas, height);
    if (!area) return;
    const { g } = area;
    const inner = size > 4 ? size - 1 : size - 0.5;
    const colours = Object.fromEntries(Object.entries(kNames).map(([l, name]) => [l.charCodeAt(0), css('--' + name)]));
    for (let i = 0; i < this.cells.length; ++i) {
      g.fillStyle = colours[this.cells[i]];
      g.fillRect(i % columns * size, Math.floor(i / columns) * size, inner, inner);
    }
    const now = performance.now();
    g.fillStyle = css('--hit');
    for (const [i, t] of this.flashes) {
      const age = (now - t) / kFlash;
      if (age >= 1) { this.flashes.delete(i); continue; }
      g.globalAlpha = 1 - age;
      g.fillRect(i % columns * size, Math.floor(i / columns) * size, inner, inner);
    }
    g.globalAlpha = 1;
    if (!this.cells.length) {
      g.fillStyle = css('--muted');
      g.fillText('The state of each block appears here', 0, 12);
    }
    this.dirty = this.flashes.size > 0;
  }

  tip(e) {
    const { size, columns } = this.layout();
    const i = Math.floor(e.offsetY / size) * columns + Math.floor(e.offsetX / size);
    if (i >= this.cells.length || e.offsetX >= columns * size) return hideTip();
    const name = kNames[String.fromCharCode(this.cells[i])];
    const which = this.scale === 1 ? `Block ${count(i + 1)}` : `Blocks ${count(i * this.scale + 1)} to ${count(Math.min((i + 1) * this.scale, this.total))}`;
    showTip(e.clientX, e.clientY, h('strong', {}, which), h('div', {}, `${name}: ${kMeaning[name]}`));
  }
}
