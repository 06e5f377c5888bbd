// Small line charts over the last minutes, one value per second.
import { css, h, hideTip, showTip, surface } from './dom.js';

const kHeight = 110, kLeft = 52, kBottom = 16, kTop = 8;
const kSpan = 180;  // seconds shown

function niceTop(max) {
  if (!(max > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((k) => k * power).find((k) => k >= max * 1.02) ?? 10 * power;
}

// lines: [[css colour name, label, field of the row, whether a missing second is 0]]
export class Chart {
  constructor(title, lines, format) {
    this.lines = lines;
    this.format = format;
    this.rows = new Map();  // second -> row
    this.canvas = h('canvas', { role: 'img', 'aria-label': title });
    this.value = h('span', { class: 'num small' });
    this.element = h('section', { class: 'panel chart' },
      h('header', {}, h('h2', {}, title), h('span', { class: 'legend' }, ...lines.map(([c, label]) => h('span', {}, h('i', { class: 'key ' + c }), label))), h('span', { class: 'grow' }), this.value),
      this.canvas);
    this.canvas.addEventListener('pointermove', (e) => this.tip(e));
    this.canvas.addEventListener('pointerleave', hideTip);
  }

  draw(rows, last) {
    this.rows = rows;
    this.last = last;
    const area = surface(this.canvas, kHeight);
    if (!area) return;
    const { g, width } = area;
    this.width = width;
    let max = 0;
    for (let t = last - kSpan; t <= last; ++t) for (const [, , f] of this.lines) max = Math.max(max, rows.get(t)?.[f] ?? 0);
    const top = Math.max(niceTop(max), this.lines[0][3] ? 2 : 0);
    const X = (t) => kLeft + (t - last + kSpan) / kSpan * (width - kLeft - 4);
    const Y = (v) => kHeight - kBottom - v / top * (kHeight - kBottom - kTop);
    g.fillStyle = css('--muted');
    g.strokeStyle = css('--line');
    g.textAlign = 'right';
    g.textBaseline = 'middle';
    for (const k of [0, 0.5, 1]) {
      const y = Math.round(Y(top * k)) + 0.5;
      g.beginPath();
      g.moveTo(kLeft, y);
      g.lineTo(width, y);
      g.stroke();
      if (max > 0 || k === 0) g.fillText(k === 0 ? '0' : this.format(top * k).replace(/\.0+(?= |$)/, ''), kLeft - 5, y);
    }
    g.textBaseline = 'top';
    g.textAlign = 'center';
    for (const s of [180, 120, 60]) g.fillText(`−${s / 60} min`, Math.max(X(last - s), kLeft + 18), kHeight - kBottom + 4);
    if (max === 0) {
      g.fillText('no data in the last three minutes', (width + kLeft) / 2, kHeight / 2 - 14);
    }
    for (const [c, , f, zero] of [...this.lines].reverse()) this.line(g, rows, last, css('--' + c), f, zero, X, Y);
  }

  line(g, rows, last, colour, field, zero, X, Y) {
    g.strokeStyle = g.fillStyle = colour;
    g.lineWidth = 1.4;
    g.lineJoin = 'round';
    let path = [];
    const flush = () => {
      if (path.length === 1) g.fillRect(path[0][0] - 1.5, path[0][1] - 1.5, 3, 3);
      g.beginPath();
      path.forEach(([x, y], i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
      g.stroke();
      path = [];
    };
    for (let t = last - kSpan; t <= last; ++t) {
      const v = rows.get(t)?.[field] ?? 0;
      if (v === 0 && !zero) flush();  // nothing was measured in that second
      else path.push([X(t), Y(v)]);
    }
    flush();
  }

  tip(e) {
    if (!this.width) return;
    const t = Math.round(this.last - kSpan + (e.offsetX - kLeft) / (this.width - kLeft - 4) * kSpan);
    const row = this.rows.get(t);
    showTip(e.clientX, e.clientY, h('strong', {}, `${Math.max(this.last - t, 0)} s ago`), h('table', {},
      ...this.lines.map(([c, label, f, zero]) => h('tr', {}, h('td', {}, h('i', { class: 'key ' + c }), label),
        h('td', { class: 'num' }, row?.[f] || zero ? this.format(row?.[f] ?? 0) : '–')))));
  }
}
