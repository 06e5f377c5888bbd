// Colours for code, by families of languages: comments, strings, numbers, keywords. Made of text
// nodes and spans; what is not known stays plain.
import { h } from './dom.js';

const words = (text) => new Set(text.split(' '));

const kC = 'break case catch class const continue default delete do else enum extern false final finally for friend goto if inline namespace new nullptr null operator override private protected public register return sizeof static struct super switch template this throw true try typedef typename union using virtual volatile while';
const kTypes = 'auto bool boolean byte char double float i8 i16 i32 i64 int isize long short signed size_t str string String u8 u16 u32 u64 unsigned usize void';
const kMore = 'abstract any as async await chan constexpr crate debugger def defer dyn elif export extends fallthrough fn fun func function go guard impl implements import in instanceof interface is let loop map match mod module mut package pub range ref select self sealed sync trait type typeof undefined unsafe val var where with yield';
const kScript = 'and as assert async await begin break case class continue declare def del do done elif else elsif end ensure esac except export False fi finally for from function global if import in is lambda local module next nil None nonlocal not or pass raise redo require rescue return self set source then True try undef unless until unset when while with yield true false null';
const kSql = 'add all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert integer intersect into is join key left like limit not null offset on or order outer over partition primary references returning right rollback select set table text then union unique update using values varchar view when where with';
const kLua = 'and break case class data deriving do else elseif end false for function goto if import in instance let local module newtype nil not of or repeat return then true type until where while';

const kString = /"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/;
const kNumber = /\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z%]*/;
const kWord = /[A-Za-z_$][\w$]*/;

// A family: [class, pattern] in the order in which they are tried, and its keywords.
const kFamilies = {
  c: { rules: [['comment', /\/\/[^\n]*|\/\*[^]*?(?:\*\/|(?![^]))/], ['string', /`(?:\\.|[^`\\])*`?/], ['string', kString], ['meta', /^[ \t]*#[ \t]*\w+|@\w+/m], ['number', kNumber], ['word', kWord]], keywords: words(`${kC} ${kTypes} ${kMore}`) },
  script: { rules: [['comment', /#[^\n]*/], ['string', /"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))/], ['string', kString], ['meta', /\$\{?\w+\}?|@\w+|(?<=\s)--?[A-Za-z][\w-]*/], ['number', kNumber], ['word', kWord]], keywords: words(kScript) },
  config: { rules: [['comment', /[#;][^\n]*/], ['meta', /^\s*\[[^\]\n]*\]/m], ['key', /^[ \t]*(?:-[ \t]+)*[\w."'][\w."'-]*(?=[ \t]*[:=])/m], ['string', kString], ['number', kNumber], ['word', kWord]], keywords: words('true false null yes no on off') },
  sql: { rules: [['comment', /--[^\n]*|\/\*[^]*?(?:\*\/|(?![^]))/], ['string', kString], ['number', kNumber], ['word', kWord]], keywords: words(kSql), fold: true },
  lua: { rules: [['comment', /--\[\[[^]*?(?:\]\]|(?![^]))|--[^\n]*|\{-[^]*?(?:-\}|(?![^]))/], ['string', kString], ['number', kNumber], ['word', kWord]], keywords: words(kLua) },
  lisp: { rules: [['comment', /;[^\n]*/], ['string', /"(?:\\.|[^"\\])*"?/], ['number', kNumber], ['word', /[^\s()[\]{}"';]+/]], keywords: words('and begin case cond define defmacro defn defun do else fn if lambda let letrec loop nil not or quote recur set! setq t when') },
  json: { rules: [['key', /"(?:\\.|[^"\\\n])*"(?=\s*:)/], ['string', /"(?:\\.|[^"\\\n])*"?/], ['comment', /\/\/[^\n]*/], ['number', /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/], ['word', kWord]], keywords: words('true false null') },
  markup: { rules: [['comment', /<!--[^]*?(?:-->|(?![^]))/], ['keyword', /<\/?[A-Za-z][\w:.-]*|\/?>/], ['string', /(?<==\s*)(?:"[^"]*"|'[^']*')/], ['key', /[\w:@.-]+(?=\s*=\s*["'])/], ['number', /&#?\w+;/]], keywords: words('') },
  css: { rules: [['comment', /\/\*[^]*?(?:\*\/|(?![^]))/], ['string', kString], ['meta', /@[\w-]+|#[\da-fA-F]{3,8}\b/], ['key', /[\w-]+(?=\s*:[^:{}]*[;}])/], ['number', kNumber]], keywords: words('') },
  diff: { rules: [['meta', /^(?:@@|diff |index |---|\+\+\+)[^\n]*/m], ['added', /^\+[^\n]*/m], ['removed', /^-[^\n]*/m]], keywords: words('') },
};

const kNames = {
  c: 'c cc cpp c++ cxx h hpp cuda cu glsl hlsl java javascript js jsx mjs ts tsx typescript go golang rust rs swift kotlin kt scala dart csharp cs c# php objc zig proto groovy solidity',
  script: 'python py python3 ruby rb bash sh shell zsh fish console perl pl r julia jl make makefile cmake dockerfile docker awk elixir ex powershell ps1 nix tcl',
  config: 'yaml yml toml ini conf cfg properties env systemd',
  sql: 'sql mysql postgresql postgres sqlite plsql',
  lua: 'lua haskell hs ada elm',
  lisp: 'lisp clojure clj scheme racket elisp asm',
  json: 'json json5 jsonc jsonl',
  markup: 'html xml svg xhtml vue svelte',
  css: 'css scss less',
  diff: 'diff patch',
};
const kByName = new Map(Object.entries(kNames).flatMap(([family, names]) => names.split(' ').map((n) => [n, family])));
const kMost = 60_000;  // characters; longer code stays plain

function compile(f) {
  f.pattern ??= new RegExp(f.rules.map(([, p]) => `(${p.source})`).join('|'), 'gm');
  return f;
}

// Strings and spans, in order.
export function highlight(code, language) {
  const name = kByName.get(language.toLowerCase());
  if (!name || code.length > kMost) return [code];
  const { pattern, rules, keywords, fold } = compile(kFamilies[name]);
  const out = [];
  let at = 0;
  for (const m of code.matchAll(pattern)) {
    if (!m[0]) continue;
    let kind = rules[m.findIndex((g, i) => i > 0 && g !== undefined) - 1][0];
    if (kind === 'word') {
      if (keywords.has(fold ? m[0].toLowerCase() : m[0])) kind = 'keyword';
      else if (code[m.index + m[0].length] === '(' && name !== 'lisp') kind = 'call';
      else continue;
    }
    if (m.index > at) out.push(code.slice(at, m.index));
    out.push(h('span', { class: 'hl-' + kind }, m[0]));
    at = m.index + m[0].length;
  }
  if (at < code.length) out.push(code.slice(at));
  return out;
}
