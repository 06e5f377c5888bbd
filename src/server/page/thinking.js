// Splits an answer into reasoning, <think>…</think>, and text. Some templates write the opening tag
// themselves, so an answer may hold only the closing one; while it streams the closing one may be
// missing. Tags in fenced or quoted code are text.

const kOpen = /^\s*<think(?:ing)?>/;
const kClose = /<\/think(?:ing)?>/;

// Where `pattern` first matches outside of code, or null.
function outsideCode(text, pattern) {
  let fence = null, at = 0;
  for (const line of text.split('\n')) {
    const mark = /^\s{0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (mark && !fence) fence = mark;
    else if (fence && line.trim().startsWith(fence)) fence = null;
    else if (!fence) {
      const found = pattern.exec(line.replace(/`[^`]*`/g, (s) => ' '.repeat(s.length)));
      if (found) return { from: at + found.index, to: at + found.index + found[0].length };
    }
    at += line.length + 1;
  }
  return null;
}

// [{think: bool, text, open: the reasoning has not ended}]
export function splitThinking(text) {
  const parts = [];
  let rest = text;
  for (;;) {
    const open = kOpen.exec(rest);
    if (!open && parts.length) break;
    const body = open ? rest.slice(open[0].length) : rest;
    // Reasoning may leave a fence open: then any closing tag ends it.
    const close = outsideCode(body, kClose) ?? (open ? plain(body) : null);
    if (!open && !close) break;
    parts.push({ think: true, text: body.slice(0, close ? close.from : undefined), open: !close });
    rest = close ? body.slice(close.to) : '';
    if (!close) break;
  }
  if (rest.trim() !== '' || !parts.length) parts.push({ think: false, text: rest.replace(/^\n+/, ''), open: false });
  return parts;
}

function plain(text) {
  const m = kClose.exec(text);
  return m && { from: m.index, to: m.index + m[0].length };
}

// What others are told: the answer without its reasoning.
export const withoutThinking = (text) => splitThinking(text).filter((p) => !p.think).map((p) => p.text).join('');
