// Markdown to elements. The source is a model's, so nothing of it is ever parsed as HTML: every
// character of it ends in a text node or, checked, in a link's address.
import { h } from './dom.js';
import { highlight } from './highlight.js';
import { math } from './math.js';

const kMostInline = 8_000, kMostDepth = 24;  // characters of a line, blocks in blocks

const safeLink = (url) => /^(https?:\/\/|mailto:)/i.test(url);

const inlineRules = [
  [/^`+/, (s, m) => {
    const end = s.indexOf(m[0], m[0].length);
    if (end < 0) return null;
    return [end + m[0].length, h('code', {}, s.slice(m[0].length, end).trim())];
  }],
  [/^\\\((.+?)\\\)/, (s, m) => formula(m, m[1])],
  [/^\\\[(.+?)\\\]/, (s, m) => formula(m, m[1], true)],
  [/^\$\$([^$]+)\$\$/, (s, m) => formula(m, m[1], true)],
  // Prices are no formula: no space beside the dollars, no digit behind them, no sentence between them.
  [/^\$(?=[^\s$])([^$]*[^\s$\\]|[^\s$\\])\$(?!\d)/, (s, m) => (/[\\^_=<>+]|^\S+$/.test(m[1]) ? formula(m, m[1]) : null)],
  [/^\\([\\`*_{}#+\-.!|~>$])/, (s, m) => [2, m[1]]],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, (s, m) => [m[0].length, h('strong', {}, ...inline(m[1]))]],
  [/^__(?=\S)([\s\S]*?\S)__(?!\w)/, (s, m) => [m[0].length, h('strong', {}, ...inline(m[1]))]],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (s, m) => [m[0].length, h('del', {}, ...inline(m[1]))]],
  [/^\*(?=[^\s*])((?:[^*\n]|\*\*[^*\n]+\*\*)*?[^\s*])\*(?!\*)/, (s, m) => [m[0].length, h('em', {}, ...inline(m[1]))]],
  [/^_(?=[^\s_])([^_\n]+?)_(?!\w)/, (s, m) => [m[0].length, h('em', {}, ...inline(m[1]))]],
  [/^!?\[([^\]\n]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"\n]*")?\)/, (s, m) => {
    if (!safeLink(m[2])) return [m[0].length, h('span', {}, ...inline(m[1]), ` (${m[2]})`)];
    // An image would be a request to somebody else: it stays a link.
    return [m[0].length, link(m[2], m[1] ? inline(m[1]) : [m[2]])];
  }],
  [/^https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/, (s, m) => [m[0].length, link(m[0], [m[0]])],
  ],
];

// Null where it cannot be read: then it stays text.
function formula(match, source, display = false) {
  try {
    return [match[0].length, math(source, display)];
  } catch {
    return display || match[0].startsWith('\\') ? [match[0].length, h('code', { class: 'tex' }, match[0])] : null;
  }
}

function link(url, content) {
  return h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, ...content);
}

export function inline(text) {
  if (text.length > kMostInline) return [text];
  const out = [];
  let plain = '';
  for (let i = 0; i < text.length;) {
    let found = null;
    // Rules begin at few characters only; an underscore or address inside a word begins nothing.
    if (/[`\\*_~[!h$]/.test(text[i]) && !(/[_h$]/.test(text[i]) && /\w/.test(text[i - 1] || ''))) {
      const rest = text.slice(i);
      for (const [pattern, make] of inlineRules) {
        const m = pattern.exec(rest);
        if (m && (found = make(rest, m))) break;
      }
    }
    if (found) {
      if (plain) out.push(plain);
      plain = '';
      out.push(found[1]);
      i += found[0];
    } else {
      plain += text[i++];
    }
  }
  if (plain) out.push(plain);
  return out;
}

function codeBlock(language, code) {
  const copy = h('button', { class: 'quiet small', onclick: async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = 'Copied';
    } catch {
      copy.textContent = 'Not allowed';
    }
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  } }, 'Copy');
  return h('div', { class: 'code' }, h('div', { class: 'code-head' }, h('span', { class: 'muted small' }, language), copy),
    h('pre', { tabindex: '0', 'aria-label': language ? `Code, ${language}` : 'Code' }, h('code', {}, ...highlight(code, language))));
}

const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const cells = (line) => line.trim().replace(/^\||\|\s*$/g, '').split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, '|'));

// Lines of one list, with what is indented under its items.
function list(lines, at, depthOfBlocks) {
  const first = item.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const depth = first[1].length;
  const out = h(ordered ? 'ol' : 'ul', ordered && parseInt(first[2]) !== 1 ? { start: parseInt(first[2]) } : {});
  while (at < lines.length) {
    const m = item.exec(lines[at]);
    if (!m || m[1].length !== depth || /\d/.test(m[2]) !== ordered) break;
    const body = [m[3]];
    const inner = depth + m[2].length + 1;
    for (++at; at < lines.length; ++at) {
      const next = item.exec(lines[at]);
      if (next && next[1].length <= depth) break;
      const indent = /^\s*/.exec(lines[at])[0].length;
      if (lines[at].trim() === '') {
        const after = lines[at + 1];
        if (after == null || after.trim() === '' || /^\s*/.exec(after)[0].length <= depth) break;
      } else if (!next && indent === 0 && body[body.length - 1].trim() === '') {
        break;
      }
      body.push(lines[at].slice(Math.min(indent, inner)));
    }
    const task = /^\[([ xX])\]\s+/.exec(body[0]);
    if (task) body[0] = body[0].slice(task[0].length);
    const blocks = render(body, depthOfBlocks + 1);
    // A lone paragraph needs no spacing of its own.
    const content = blocks[0]?.tagName === 'P' ? [...blocks[0].childNodes, ...blocks.slice(1)] : blocks;
    if (task) content.unshift(h('input', { type: 'checkbox', disabled: true, checked: task[1] !== ' ', 'aria-label': task[1] === ' ' ? 'To do' : 'Done' }));
    out.append(h('li', task ? { class: 'task' } : {}, ...content));
    while (at < lines.length && lines[at].trim() === '' && item.exec(lines[at + 1] || '')?.[1].length === depth) ++at;
  }
  return [out, at];
}

// A table, from its head, the line below it and its rows.
function table(head, marks, rows) {
  const aligned = cells(marks).map((c) => (c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : c.startsWith(':') ? 'left' : null));
  const names = cells(head);
  const line = (tag, list) => h('tr', {}, ...names.map((_, i) => h(tag, aligned[i] ? { class: 'to-' + aligned[i] } : {}, ...inline(list[i] ?? ''))));
  return h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, line('th', names)), h('tbody', {}, ...rows.map((r) => line('td', cells(r))))));
}

// A formula that stands alone, over one or more lines: [its element, the line behind it], or null.
function displayed(lines, at) {
  const open = /^\s*(\\\[|\$\$|\\begin\{(?:equation|align|gather)\*?\})/.exec(lines[at])?.[1];
  if (!open) return null;
  const close = open === '$$' ? '$$' : open === '\\[' ? '\\]' : open.replace('begin', 'end');
  for (let end = at; end < lines.length && lines[end].trim() !== ''; ++end) {
    const text = lines.slice(at, end + 1).join('\n').trim();
    if (!text.endsWith(close) || text.length < open.length + close.length) continue;
    const source = open.startsWith('\\begin') ? text : text.slice(open.length, -close.length);
    if (open === '$$' && source.includes('$$')) return null;
    let made;
    try { made = math(source, true); } catch { made = h('code', { class: 'tex' }, text); }
    return [h('div', { class: 'formula scroll' }, made), end + 1];
  }
  return null;
}

function render(lines, depth = 0) {
  if (depth > kMostDepth) return [h('p', { class: 'plain' }, lines.join('\n'))];
  const out = [];
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const p = h('p');
    paragraph.forEach((line, i) => {
      if (i > 0) p.append(h('br'));
      p.append(...inline(line));
    });
    out.push(p);
    paragraph = [];
  };
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let m;
    if (line.trim() === '') {
      flush();
      ++i;
    } else if ((m = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line))) {
      flush();
      const code = [];
      for (++i; i < lines.length && !lines[i].trim().startsWith(m[1]); ++i) code.push(lines[i]);
      ++i;
      out.push(codeBlock(m[2], code.join('\n')));
    } else if ((m = displayed(lines, i))) {
      flush();
      out.push(m[0]);
      i = m[1];
    } else if ((m = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line))) {
      flush();
      out.push(h('h' + Math.min(m[1].length + 2, 6), {}, ...inline(m[2])));
      ++i;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push(h('hr'));
      ++i;
    } else if (/^\s{0,3}>/.test(line)) {
      flush();
      const quote = [];
      for (; i < lines.length && /^\s{0,3}>/.test(lines[i]); ++i) quote.push(lines[i].replace(/^\s{0,3}> ?/, ''));
      out.push(h('blockquote', {}, ...render(quote, depth + 1)));
    } else if (item.test(line)) {
      flush();
      const [made, next] = list(lines, i, depth);
      out.push(made);
      i = next;
    } else if (line.includes('|') && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] || '') && lines[i + 1].includes('-')) {
      flush();
      const from = i + 2;
      for (i = from; i < lines.length && lines[i].includes('|');) ++i;
      out.push(table(line, lines[from - 1], lines.slice(from, i)));
    } else {
      paragraph.push(line);
      ++i;
    }
  }
  flush();
  return out;
}

export function markdown(text) {
  return render(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'));
}
