// LaTeX to MathML, the part that answers use. Throws on what it does not know: the caller then shows
// the source. Text enters only as text nodes.
import { kAccents, kAlphabets, kBig, kFunctions, kLetters, kOperators, kSpaces } from './math_names.js';

const kSpace = 'http://www.w3.org/1998/Math/MathML';
const kMostDepth = 40, kMostLength = 5000;

function m(tag, attributes, ...children) {
  const e = document.createElementNS(kSpace, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}
const known = (table, name) => Object.hasOwn(table, name);
const row = (list) => (list.length === 1 ? list[0] : m('mrow', {}, ...list));
const operator = (text, attributes = {}) => m('mo', attributes, text);

function tokens(source) {
  return source.match(/\\operatorname\*|\\[A-Za-z]+|\\[^]|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [];
}

// A letter of another alphabet: bold, blackboard, script and so on have code points of their own.
function styled(text, style) {
  const a = kAlphabets[style];
  return [...text].map((c) => {
    if (a.odd?.[c]) return a.odd[c];
    const k = c.charCodeAt(0);
    if (k >= 65 && k <= 90) return String.fromCodePoint(a.upper + k - 65);
    if (k >= 97 && k <= 122 && a.lower) return String.fromCodePoint(a.lower + k - 97);
    if (k >= 48 && k <= 57 && a.digit) return String.fromCodePoint(a.digit + k - 48);
    return c;
  }).join('');
}

class Parser {
  constructor(source, display) {
    this.list = tokens(source);
    this.at = 0;
    this.depth = 0;
    this.display = display;
  }

  // Spaces mean nothing, but in raw().
  peek() {
    while (this.list[this.at]?.trim() === '') ++this.at;
    return this.list[this.at];
  }
  next() {
    if (this.peek() === undefined) throw new Error('ends too early');
    return this.list[this.at++];
  }
  expect(t) { if (this.next() !== t) throw new Error(`${t} is missing`); }

  // Up to one of `ends`, which is left.
  sequence(...ends) {
    if (++this.depth > kMostDepth) throw new Error('too deep');
    const out = [];
    while (this.peek() !== undefined && !ends.includes(this.peek())) out.push(this.scripts(this.atom()));
    --this.depth;
    return out;
  }

  group() {
    if (this.peek() !== '{') return this.atom();
    this.next();
    const inner = this.sequence('}');
    this.expect('}');
    return row(inner);
  }

  // The characters of {…}, as they are.
  raw() {
    this.expect('{');
    const from = this.at;
    for (let deep = 1; deep > 0; ++this.at) {
      if (this.at >= this.list.length) throw new Error('} is missing');
      deep += { '{': 1, '}': -1 }[this.list[this.at]] ?? 0;
    }
    return this.list.slice(from, this.at - 1).join('');
  }

  scripts(base) {
    let below = null, above = null, primes = '';
    if (['\\limits', '\\nolimits'].includes(this.peek())) base.limits = this.next() === '\\limits' ? 'always' : null;
    for (;;) {
      const t = this.peek();
      if (t === "'") { this.next(); primes += '′'; }
      else if (t === '^' && !above) { this.next(); above = this.group(); }
      else if (t === '_' && !below) { this.next(); below = this.group(); }
      else break;
    }
    if (primes) above = above ? m('mrow', {}, operator(primes), above) : operator(primes);
    if (!below && !above) return base;
    const limits = base.limits && (this.display || base.limits === 'always');
    const [both, under, over] = limits ? ['munderover', 'munder', 'mover'] : ['msubsup', 'msub', 'msup'];
    if (below && above) return m(both, {}, base, below, above);
    return below ? m(under, {}, base, below) : m(over, {}, base, above);
  }

  atom() {
    const t = this.next();
    if (t === '{') {
      this.at -= 1;
      return this.group();
    }
    if (/^\d/.test(t)) return m('mn', {}, t);
    if (/^\p{L}$/u.test(t)) return m('mi', {}, t);
    if (t[0] === '\\') return this.command(t.slice(1));
    if (t === '~') return m('mspace', { width: '0.33em' });
    if (t === '^' || t === '_') return (this.at -= 1, m('mrow', {}));  // a script without a base
    if (t === "'") return operator('′');
    if ('}&'.includes(t)) throw new Error(`${t} is out of place`);
    return operator({ '-': '−', '*': '∗' }[t] ?? t, '()[]|'.includes(t) ? { stretchy: 'false' } : {});
  }

  command(name) {
    if (known(kLetters, name)) return m('mi', {}, kLetters[name]);
    if (known(kOperators, name)) return operator(kOperators[name]);
    if (known(kSpaces, name)) return m('mspace', { width: kSpaces[name] });
    if (known(kBig, name)) return Object.assign(operator(kBig[name], { movablelimits: 'false' }), { limits: /int/.test(name) ? null : 'display' });
    if (kFunctions.includes(name)) return Object.assign(operator(name, { form: 'prefix', lspace: '0', rspace: '0.17em' }), { limits: /^(lim|max|min|sup|inf|arg|det|Pr|gcd)/.test(name) ? 'display' : null });
    if (known(kAccents, name)) {
      const [mark, under] = kAccents[name];
      const body = this.group();
      return m(under ? 'munder' : 'mover', under ? { accentunder: 'true' } : { accent: 'true' }, body, operator(mark, { stretchy: /bar|line|brace|wide|over/.test(name) ? 'true' : 'false' }));
    }
    if (known(kAlphabets, name)) return this.alphabet(name);
    const made = known(kCommands, name) && this[kCommands[name]](name);
    if (!made) throw new Error(`\\${name} is not known`);
    return made;
  }

  alphabet(name) {
    const text = this.peek() === '{' ? this.raw().trim() : this.next();
    if (!text.startsWith('\\')) return m('mi', {}, styled(text, name));
    if (known(kLetters, text.slice(1))) return m('mi', {}, kLetters[text.slice(1)]);
    throw new Error(`${text} has no other form`);
  }

  fraction(name) {
    const top = this.group(), bottom = this.group();
    if (/binom/.test(name)) return m('mrow', {}, operator('('), m('mfrac', { linethickness: '0' }, top, bottom), operator(')'));
    return m('mfrac', name === 'dfrac' ? { displaystyle: 'true' } : {}, top, bottom);
  }

  root() {
    if (this.peek() !== '[') return m('msqrt', {}, this.group());
    this.next();
    const degree = row(this.sequence(']'));
    this.expect(']');
    return m('mroot', {}, this.group(), degree);
  }

  delimiter() {
    const t = this.next();
    if (t === '.') return '';
    if (/^[()[\]|/<>]$/.test(t)) return { '<': '⟨', '>': '⟩' }[t] ?? t;
    const name = t.slice(1);
    if ('{}|'.includes(name)) return name === '|' ? '‖' : name;
    if (known(kOperators, name)) return kOperators[name];
    throw new Error(`${t} is no delimiter`);
  }

  fences() {
    const open = this.delimiter();
    const inner = this.sequence('\\right');
    this.expect('\\right');
    const close = this.delimiter();
    const fence = (text, form) => (text ? [operator(text, { fence: 'true', form, stretchy: 'true' })] : []);
    return m('mrow', {}, ...fence(open, 'prefix'), ...inner, ...fence(close, 'postfix'));
  }

  size() { return operator(this.delimiter(), { stretchy: 'true', minsize: '1.2em' }); }

  words(name) {
    const text = this.raw().replace(/~/g, ' ');
    return name === 'operatorname' || name === 'mathrm' ? m('mi', { mathvariant: 'normal' }, text) : m('mtext', {}, text);
  }

  stack(name) {
    const mark = this.group(), base = this.group();
    return m(name === 'underset' ? 'munder' : 'mover', {}, base, mark);
  }

  boxed() { return m('mrow', { class: 'boxed' }, this.group()); }

  modulo(name) {
    if (name === 'bmod') return operator('mod');
    return m('mrow', {}, operator('('), m('mtext', {}, 'mod '), this.group(), operator(')'));
  }

  not() {
    const negated = { '=': '≠', '\\in': '∉', '\\subset': '⊄', '\\equiv': '≢', '\\exists': '∄' }[this.next()];
    if (!negated) throw new Error('\\not is not known here');
    return operator(negated);
  }

  nothing() { return m('mrow', {}); }

  environment() {
    const name = this.raw();
    const fences = { pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{ ' }[name];
    const aligned = /^(aligned|align\*?|split|gathered|gather\*?|eqnarray\*?|alignedat)$/.test(name);
    if (!fences && !aligned && !/^(small)?matrix$|^array$|^equation\*?$/.test(name)) throw new Error(`${name} is not known`);
    if (name === 'array' || name === 'alignedat') this.raw();  // columns
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(m('mtd', {}, ...this.sequence('&', '\\\\', '\\end', '\\hline')));
      const t = this.next();
      if (t === '\\\\') rows.push([]);
      else if (t === '\\hline') rows.at(-1).pop();
      else if (t === '\\end') break;
    }
    if (this.raw() !== name) throw new Error('another environment ends');
    if (rows.length > 1 && rows.at(-1).every((c) => !c.childNodes.length)) rows.pop();
    const table = m('mtable', { class: aligned ? 'aligned' : name, ...(aligned ? { displaystyle: 'true' } : {}) }, ...rows.map((cells) => m('mtr', {}, ...cells)));
    if (!fences) return table;
    const close = fences[1] === ' ' ? [] : [operator(fences[1], { fence: 'true', form: 'postfix', stretchy: 'true' })];
    return m('mrow', {}, operator(fences[0], { fence: 'true', form: 'prefix', stretchy: 'true' }), table, ...close);
  }
}

const kCommands = {
  frac: 'fraction', dfrac: 'fraction', tfrac: 'fraction', cfrac: 'fraction', binom: 'fraction', dbinom: 'fraction', tbinom: 'fraction', sqrt: 'root', left: 'fences',
  big: 'size', Big: 'size', bigg: 'size', Bigg: 'size', bigl: 'size', bigr: 'size', Bigl: 'size', Bigr: 'size', biggl: 'size', biggr: 'size',
  text: 'words', textbf: 'words', textit: 'words', textrm: 'words', mbox: 'words', mathrm: 'words', operatorname: 'words', 'operatorname*': 'words',
  overset: 'stack', underset: 'stack', stackrel: 'stack', boxed: 'boxed', pmod: 'modulo', bmod: 'modulo', not: 'not', begin: 'environment',
  displaystyle: 'nothing', textstyle: 'nothing', nonumber: 'nothing',
};

// A <math> element, or an exception.
export function math(source, display) {
  if (source.length > kMostLength) throw new Error('too long');
  const p = new Parser(source, display);
  const inner = p.sequence();
  if (p.peek() !== undefined) throw new Error('more than a formula');
  return m('math', display ? { display: 'block' } : {}, row(inner));
}
