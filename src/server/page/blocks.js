// The KV pool as cells of one or several blocks, and flashes where a prefix was found. A cell of
// several blocks is filled by the shares of their uses, so that a pool of any size has a map that
// can be read.
import { $, count, css, h, hideTip, plural, showTip, surface } from './dom.js';

const kUses = ['free', 'cached', 'owned', 'shared', 'pending', 'reserved'];
const kLetters = 'fcospr', kNum = kUses.length;
const kMeaning = { free: 'nothing in it', cached: 'idle, kept for its prefix', owned: 'one sequence', shared: 'several sequences', pending: 'freed when the step in flight ends', reserved: 'in the range of a sequence, not used yet' };
const kFlash = 1500, kMostHeight = 240, kSizes = [16, 14, 12, 10, 8, 7, 6];

// "f120o3s", or with several blocks a cell "f25*100 f20c5": counts by use, kNum numbers per cell.
export function readMap(map, scale) {
  const out = [];
  if (scale === 1) {
    for (const [, letter, n] of map.matchAll(/([a-z])(\d*)/g)) {
      const cell = Array.from(kLetters, (l) => +(l === letter));
      for (let k = n ? +n : 1; k > 0; --k) out.push(...cell);
    }
    return out;
  }
  for (const [, text, n] of map.matchAll(/([a-z\d]+)(?:\*(\d+))?/g)) {
    const cell = Array(kNum).fill(0);
    for (const [, letter, k] of text.matchAll(/([a-z])(\d*)/g)) cell[kLetters.indexOf(letter)] = k ? +k : 1;
    for (let k = n ? +n : 1; k > 0; --k) out.push(...cell);
  }
  return out;
}

export class BlockMap {
  constructor() {
    this.counts = [];       // by use, kNum per cell as it came
    this.scale = 1;         // blocks per cell as it came
    this.total = 0;
    this.flashes = new Map();  // block -> when
    this.canvas = $('blocks');
    this.dirty = true;
    this.canvas.addEventListener('pointermove', (e) => this.tip(e));
    this.canvas.addEventListener('pointerleave', hideTip);
    this.legend(Array(kNum).fill(0));
  }

  set({ map, counts, scale }) {
    this.counts = readMap(map, scale);
    this.scale = scale;
    this.total = counts.reduce((a, b) => a + b, 0);
    this.legend(counts);
    this.dirty = true;
  }

  hit(blocks) {
    const now = performance.now();
    for (const b of blocks) this.flashes.set(b, now);
    this.dirty = true;
  }

  legend(counts) {
    $('blocks-legend').replaceChildren(...kUses.map((name, i) => (name !== 'reserved' || counts[i]) && h('span', { title: kMeaning[name] },
      h('i', { class: 'key ' + name }), `${name} `, h('b', { class: 'num' }, count(counts[i])))).filter(Boolean),
      h('span', { title: 'a prompt was found here' }, h('i', { class: 'key hit' }), 'prefix hit'));
    this.canvas.setAttribute('aria-label', `KV blocks: ${kUses.map((name, i) => `${count(counts[i])} ${name}`).join(', ')}`);
  }

  // The largest cells that fit the height; where the smallest do not, a drawn cell is several.
  layout() {
    const width = this.canvas.clientWidth, num = Math.max(this.counts.length / kNum, 1);
    const fits = (s, n) => Math.ceil(n / Math.floor(width / s)) * s <= kMostHeight;
    let merge = 1;
    const smallest = kSizes.at(-1);
    while (!fits(smallest, Math.ceil(num / merge)) && width >= smallest) ++merge;
    const n = Math.ceil(num / merge);
    const size = kSizes.find((s) => fits(s, n)) ?? smallest;
    const columns = Math.max(1, Math.floor(width / size));
    return { size, columns, merge, n, height: Math.max(Math.ceil(n / columns) * size, 20) };
  }

  // Counts by use of a drawn cell.
  cell(i, merge) {
    const sum = Array(kNum).fill(0);
    const end = Math.min((i + 1) * merge * kNum, this.counts.length);
    for (let k = i * merge * kNum; k < end; ++k) sum[k % kNum] += this.counts[k];
    return sum;
  }

  draw() {
    if (!this.dirty) return;
    const { size, columns, merge, n, height } = this.layout();
    const area = surface(this.canvas, height);
    if (!area) return;
    const { g } = area;
    const blocks = this.scale * merge;
    $('blocks-note').textContent = blocks > 1 ? `a cell is ${count(blocks)} blocks of ${count(this.total)}` : '';
    const inner = size - 1;
    const colours = kUses.map((name) => css('--' + name));
    const drawn = this.counts.length ? n : 0;
    for (let i = 0; i < drawn; ++i) {
      const sum = this.cell(i, merge);
      const all = sum.reduce((a, b) => a + b, 0);
      const x = i % columns * size, bottom = Math.floor(i / columns) * size + inner;
      // From the bottom what is most in use; whatever is there has a pixel.
      let left = inner;
      for (let use = kNum - 1; use >= 0 && left > 0; --use) {
        if (!sum[use]) continue;
        const part = use === 0 ? left : Math.min(left, Math.max(1, Math.round(inner * sum[use] / all)));
        g.fillStyle = colours[use];
        g.fillRect(x, bottom - inner + left - part, inner, part);
        left -= part;
      }
      if (left > 0) g.fillRect(x, bottom - inner, inner, left);  // lost to rounding: the last colour
    }
    this.drawFlashes(g, size, columns, blocks);
    if (!drawn) {
      g.fillStyle = css('--muted');
      g.fillText('The state of each block appears here', 0, 12);
    }
    this.dirty = this.flashes.size > 0;
  }

  drawFlashes(g, size, columns, blocks) {
    const now = performance.now();
    g.fillStyle = css('--hit');
    for (const [block, t] of this.flashes) {
      const age = (now - t) / kFlash;
      if (age >= 1) { this.flashes.delete(block); continue; }
      const i = Math.floor(block / blocks);
      g.globalAlpha = 1 - age;
      g.fillRect(i % columns * size, Math.floor(i / columns) * size, size - 1, size - 1);
    }
    g.globalAlpha = 1;
  }

  tip(e) {
    const { size, columns, merge, n } = this.layout();
    const i = Math.floor(e.offsetY / size) * columns + Math.floor(e.offsetX / size);
    if (i >= n || !this.counts.length || e.offsetX >= columns * size) return hideTip();
    const sum = this.cell(i, merge);
    const blocks = this.scale * merge;
    if (blocks === 1) {
      const name = kUses[sum.indexOf(1)];
      return showTip(e.clientX, e.clientY, h('strong', {}, `Block ${count(i + 1)}`), h('div', {}, `${name}: ${kMeaning[name]}`));
    }
    const rows = kUses.flatMap((name, k) => (sum[k] ? [h('tr', {}, h('td', {}, h('i', { class: 'key ' + name }), name), h('td', { class: 'num' }, plural(sum[k], 'block')))] : []));
    showTip(e.clientX, e.clientY, h('strong', {}, `Blocks ${count(i * blocks + 1)} to ${count(Math.min((i + 1) * blocks, this.total))}`), h('table', {}, ...rows));
  }
}
