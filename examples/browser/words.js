// Attention per word of a text. No DOM: these functions also run outside a browser.

// The words of a text, each with its tokens [first, last). If tokens do not align with words (character models), each
// token is a word. ids: from tokenizer.encode, with special tokens.
export function wordsOf(tokenizer, text, ids) {
  const inner = ids.slice(1, -1);
  const words = [{ text: "start", first: 0, last: 1, special: true }];
  const end = { text: "end", first: ids.length - 1, last: ids.length, special: true };
  let place = 0;
  for (const [word] of text.matchAll(/\S+/g)) {
    if (place === inner.length) break;
    const own = tokenizer.tokenize(word);
    if (!own.length) continue;
    const last = Math.min(place + own.length, inner.length);
    if (inner.slice(place, last).some((id, i) => id !== own[i])) return [words[0], ...tokensOf(tokenizer, inner), end];
    words.push({ text: word, first: place + 1, last: last + 1, special: false });
    place = last;
  }
  return place === inner.length ? [...words, end] : [words[0], ...tokensOf(tokenizer, inner), end];
}

function tokensOf(tokenizer, inner) {
  return inner.map((id, i) => ({ text: tokenizer.tokens[id], first: i + 1, last: i + 2, special: false }));
}

// Mean attention that a token of each word receives, as a share of the total: from all tokens, or from the tokens of one
// word. layer or head null: the mean over all. real: number of tokens without padding.
export function received({ values, layers, heads, length }, words, real, layer = null, head = null, from = null) {
  const rows = from ? range(from.first, from.last) : range(0, real);
  const chosenLayers = layer === null ? range(0, layers) : [layer];
  const chosenHeads = head === null ? range(0, heads) : [head];
  const perToken = new Float64Array(real);
  for (const l of chosenLayers) {
    for (const h of chosenHeads) {
      for (const row of rows) {
        const start = ((l * heads + h) * length + row) * length;
        for (let column = 0; column < real; column++) perToken[column] += values[start + column];
      }
    }
  }
  const total = perToken.reduce((sum, value) => sum + value, 0) || 1;
  return words.map(({ first, last }) => {
    const own = range(first, last).reduce((sum, token) => sum + perToken[token], 0);
    return own / total / (last - first);
  });
}

function range(first, last) {
  return Array.from({ length: last - first }, (_, i) => first + i);
}
