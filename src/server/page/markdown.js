// Markdown to elements. The source is a model's, so nothing of it is ever parsed as HTML: every
// character of it ends in a text node or, checked, in a link's address.
import { h } from './dom.js';

const safeLink = (url) => /^(https?:\/\/|mailto:)/i.test(url);

const inlineRules = [
  [/^`+/, (s, m) => {
    const end = s.indexOf(m[0], m[0].length);
    if (end < 0) return null;
    return [end + m[0].length, h('code', {}, s.slice(m[0].length, end).trim())];
  }],
  [/^\\([\\`*_{}[\]()#+\-.!|~>])/, (s, m) => [2, m[1]]],
  [/^\*\*(?=\S)([\s\S]+?\S)\*\*/, (s, m) => [m[0].length, h('strong', {}, ...inline(m[1]))]],
  [/^__(?=\S)([\s\S]+?\S)__(?!\w)/, (s, m) => [m[0].length, h('strong', {}, ...inline(m[1]))]],
  [/^~~(?=\S)([\s\S]+?\S)~~/, (s, m) => [m[0].length, h('del', {}, ...inline(m[1]))]],
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

function link(url, content) {
  return h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, ...content);
}

export function inline(text) {
  const out = [];
  let plain = '';
  for (let i = 0; i < text.length;) {
    let found = null;
    // Rules begin at few characters only; an underscore or address inside a word begins nothing.
    if (/[`\\*_~[!h]/.test(text[i]) && !(/[_h]/.test(text[i]) && /\w/.test(text[i - 1] || ''))) {
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
    h('pre', { tabindex: '0' }, h('code', {}, code)));
}

const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const cells = (line) => line.trim().replace(/^\||\|\s*$/g, '').split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, '|'));

// Lines of one list, with what is indented under its items.
function list(lines, at) {
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
    const blocks = render(body);
    // A lone paragraph needs no spacing of its own.
    out.append(h('li', {}, ...(blocks[0]?.tagName === 'P' ? [...blocks[0].childNodes, ...blocks.slice(1)] : blocks)));
    while (at < lines.length && lines[at].trim() === '' && item.exec(lines[at + 1] || '')?.[1].length === depth) ++at;
  }
  return [out, at];
}

function render(lines) {
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
      out.push(h('blockquote', {}, ...render(quote)));
    } else if (item.test(line)) {
      flush();
      const [made, next] = list(lines, i);
      out.push(made);
      i = next;
    } else if (line.includes('|') && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] || '') && lines[i + 1].includes('-')) {
      flush();
      const head = h('tr', {}, ...cells(line).map((c) => h('th', {}, ...inline(c))));
      const body = h('tbody');
      for (i += 2; i < lines.length && lines[i].includes('|'); ++i)
        body.append(h('tr', {}, ...cells(lines[i]).map((c) => h('td', {}, ...inline(c)))));
      out.push(h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, head), body)));
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
