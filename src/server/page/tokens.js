// An answer's tokens, tinted by how unlikely they were, with their alternatives in a tooltip.
import { h, hideTip, percent, showTip } from './dom.js';

function tint(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 'p0' : p > 0.7 ? 'p1' : p > 0.5 ? 'p2' : p > 0.3 ? 'p3' : p > 0.1 ? 'p4' : 'p5';
}

const visible = (token) => token.replace(/ /g, '␣').replace(/\n/g, '↵').replace(/\t/g, '⇥') || '∅';

function tokenTip(span, [text, logprob, top]) {
  const rows = top.some(([t]) => t === text) ? top : [[text, logprob], ...top];
  const table = h('table', { class: 'top' }, ...rows.map(([t, l]) => {
    const bar = h('i');
    bar.style.width = `${Math.max(1, 60 * Math.exp(l))}px`;
    return h('tr', { class: t === text ? 'chosen' : '' }, h('td', {}, h('code', {}, visible(t))),
      h('td', { class: 'num' }, percent(Math.exp(l))), h('td', {}, bar));
  }));
  const box = span.getBoundingClientRect();
  showTip(box.left - 12, box.bottom - 12, table);
}

// tokens: [text, logprob, [[text, logprob], ...]]
export function tokenSpans(tokens) {
  const p = h('p', { class: 'tokens' });
  for (const t of tokens) {
    const span = h('span', { class: 'tok ' + tint(t[1]), tabindex: '-1' }, t[0]);
    span.addEventListener('pointerenter', () => tokenTip(span, t));
    span.addEventListener('focus', () => tokenTip(span, t));
    span.addEventListener('pointerleave', hideTip);
    span.addEventListener('blur', hideTip);
    p.append(span);
  }
  // One stop for the keyboard; the arrows walk.
  if (p.firstChild) p.firstChild.tabIndex = 0;
  p.addEventListener('keydown', (e) => {
    const to = e.key === 'ArrowRight' ? e.target.nextSibling : e.key === 'ArrowLeft' ? e.target.previousSibling : null;
    if (to) { to.focus(); e.preventDefault(); }
  });
  return p;
}

// Both shapes of log-probabilities of a chunk, as tokenSpans() takes them.
export function scored(l) {
  if (!l) return [];
  if (l.content) return l.content.map((t) => [t.token, t.logprob, t.top_logprobs.map((x) => [x.token, x.logprob])]);
  return l.tokens.map((t, i) => [t, l.token_logprobs[i] ?? 0,
    Object.entries(l.top_logprobs?.[i] || {}).sort((a, b) => b[1] - a[1])]);
}
