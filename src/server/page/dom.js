// Elements, numbers for people, and what the browser remembers. Text enters the page only as text.

export const $ = (id) => document.getElementById(id);

// h('button', {class: 'main', onclick: f}, 'Send', child)
export function h(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
    else if (name === 'class') e.className = value;
    else if (value === true) e.setAttribute(name, '');
    else if (value !== false && value != null) e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c != null));
  return e;
}

// Makes `nodes` the children of `parent`. Children that are alike stay: what is selected, open or
// focused in them remains so.
export function patch(parent, nodes) {
  nodes.forEach((node, i) => {
    const old = parent.childNodes[i];
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

// Read out by screen readers, not shown.
export const say = (text) => { $('say').textContent = text; };

const group = new Intl.NumberFormat('en-US');
export const count = (n) => group.format(Math.round(n));

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

// Three figures or so: 0.123, 4.56, 78.9, 1,234.
export function number(n) {
  if (!isFinite(n)) return '–';
  const a = Math.abs(n);
  if (a === 0) return '0';
  if (a < 10) return n.toFixed(2);
  if (a < 100) return n.toFixed(1);
  return count(n);
}

// Microseconds in the unit that fits.
export function time(us) {
  if (us == null || us < 0 || !isFinite(us)) return '–';
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e4) return `${(us / 1e3).toFixed(2)} ms`;
  if (us < 1e5) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 1e6) return `${Math.round(us / 1e3)} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(2)} s`;
  const s = Math.round(us / 1e6);
  return s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
}

export function bytes(n) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let u = 0;
  for (; n >= 1000 && u < units.length - 1; n /= 1000) ++u;
  return `${n < 10 && u > 0 ? n.toFixed(1) : Math.round(n)} ${units[u]}`;
}

export const percent = (x) => (isFinite(x) ? `${(100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0)} %` : '–');

// localStorage may be full or forbidden; the page works without.
export const memory = {
  get(name, otherwise) {
    try {
      const text = localStorage.getItem('sluice.' + name);
      return text == null ? otherwise : JSON.parse(text);
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem('sluice.' + name, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  },
};

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas of the size it has on the page, at the screen's resolution. Null while it is hidden.
export function surface(canvas, height) {
  const width = canvas.clientWidth;
  if (width === 0) return null;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + 'px';
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = '11px ' + css('--sans');
  return { g, width, height };
}

// One tooltip for the page.
export function showTip(x, y, ...children) {
  const tip = $('tip');
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4));
  const below = y + 16 + box.height < innerHeight;
  tip.style.left = left + 'px';
  tip.style.top = (below ? y + 16 : Math.max(4, y - box.height - 10)) + 'px';
}
export const hideTip = () => { $('tip').hidden = true; };

export function legend(entries) {
  return entries.map(([name, label]) => h('span', {}, h('i', { class: 'key ' + name }), label));
}
