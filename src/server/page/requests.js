// The table of requests: live ones, then the last that finished.
import { $, count, h, number, time } from './dom.js';

// Of a request's row.
const R = { id: 0, state: 1, key: 2, arrival: 3, prompt: 4, cached: 5, output: 6, most: 7, preempted: 8, choices: 9, ttft: 10, total: 11 };
const kLive = new Set(['waiting', 'prefill', 'decode', 'preempted']);

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

export function makeTable(onOpen) {
  $('requests').tHead.replaceChildren(h('tr', {}, ...kColumns.map(([label], i) => h('th', { class: i === 1 ? '' : 'num' }, label))));
  const open = (e) => {
    const row = e.target.closest('tr');
    if (row?.dataset.id) onOpen(+row.dataset.id);
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

// `told`: the request whose story is open.
export function showRequests(frame, told) {
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
    row.classList.toggle('on', told === r[R.id]);
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
  });
  for (const row of old.values()) row.remove();
  const live = list.filter((r) => kLive.has(r[R.state])).length;
  const more = frame.live - live;
  $('requests-note').textContent = `${count(frame.live)} live${more > 0 ? `, ${count(more)} of them not shown` : ''}`;
}
