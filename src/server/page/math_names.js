// The names that math.js knows, and the characters they stand for.

const pairs = (text) => Object.fromEntries(text.trim().split(/\s+/).map((p) => p.split('=')));

export const kLetters = pairs(`
  alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν
  xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
  Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω
  infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ top=⊤ bot=⊥ angle=∠ triangle=△
  ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ imath=ı jmath=ȷ degree=° $=$ %=% #=# _=_ checkmark=✓`);

export const kOperators = pairs(`
  times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ setminus=∖ backslash=\\
  le=≤ leq=≤ leqslant=≤ ge=≥ geq=≥ geqslant=≥ ne=≠ neq=≠ ll=≪ gg=≫ equiv=≡ approx=≈ cong=≅ sim=∼ simeq=≃ propto=∝ prec=≺ succ=≻
  in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ cup=∪ cap=∩ wedge=∧ land=∧ vee=∨ lor=∨ neg=¬ lnot=¬
  forall=∀ exists=∃ nexists=∄ mid=∣ nmid=∤ parallel=∥ perp=⊥ models=⊨ vdash=⊢ therefore=∴ because=∵ colon=: lt=< gt=>
  to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹ impliedby=⟸
  longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ mapsto=↦ hookrightarrow=↪ uparrow=↑ downarrow=↓ rightharpoonup=⇀ rightleftharpoons=⇌
  langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ {={ }=} |=‖ lbrace={ rbrace=} lbrack=[ rbrack=] &=& prime=′ dagger=† blacksquare=■ square=□ Box=□ doteq=≐ asymp=≍ triangleq=≜ coloneqq=≔`);

export const kBig = pairs('sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀');

export const kFunctions = 'sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp lim limsup liminf max min sup inf det dim ker arg argmax argmin gcd deg hom Pr'.split(' ');

export const kSpaces = { ',': '0.17em', ':': '0.22em', '>': '0.22em', ';': '0.28em', '!': '-0.17em', ' ': '0.33em', quad: '1em', qquad: '2em', enspace: '0.5em', thinspace: '0.17em' };

// name: [character, below instead of above]
export const kAccents = {
  hat: ['^'], widehat: ['^'], bar: ['¯'], overline: ['¯'], vec: ['→'], overrightarrow: ['→'], dot: ['˙'], ddot: ['¨'], tilde: ['~'], widetilde: ['~'],
  acute: ['´'], grave: ['`'], check: ['ˇ'], breve: ['˘'], overbrace: ['⏞'], underline: ['_', true], underbrace: ['⏟', true],
};

// Where an alphabet's A, a and 0 are; letters that Unicode has elsewhere are named.
export const kAlphabets = {
  mathbf: { upper: 0x1d400, lower: 0x1d41a, digit: 0x1d7ce },
  boldsymbol: { upper: 0x1d468, lower: 0x1d482, digit: 0x1d7ce },
  bm: { upper: 0x1d468, lower: 0x1d482, digit: 0x1d7ce },
  mathit: { upper: 0x1d434, lower: 0x1d44e, odd: { h: 'ℎ' } },
  mathbb: { upper: 0x1d538, lower: 0x1d552, digit: 0x1d7d8, odd: pairs('C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ') },
  mathcal: { upper: 0x1d49c, lower: 0x1d4b6, odd: pairs('B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ') },
  mathscr: { upper: 0x1d49c, lower: 0x1d4b6, odd: pairs('B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ') },
  mathfrak: { upper: 0x1d504, lower: 0x1d51e, odd: pairs('C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ') },
  mathsf: { upper: 0x1d5a0, lower: 0x1d5ba, digit: 0x1d7e2 },
  mathtt: { upper: 0x1d670, lower: 0x1d68a, digit: 0x1d7f6 },
};
