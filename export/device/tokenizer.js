// Token ids of texts in a browser, without dependencies: copy this one file next to the page.
//
//   import { Tokenizer } from "./tokenizer.js";
//   const tokenizer = await Tokenizer.load("model.tokenizer.json");
//   const { tokenIds, paddingMask } = tokenizer.pad(tokenizer.encode("some text", 64), 64);
//
// or, for a model of pairs of texts,
//
//   import { PairTokenizer } from "./tokenizer.js";
//   const tokenizer = await PairTokenizer.load("model.tokenizer.json");
//   const inputs = tokenizer.inputs("some text", "another text", 64);
//
// It reads the tokenizer.json that an export wrote and returns the token ids of training, with any version of Unicode in
// the browser.

const FORMAT = 1;

export class Tokenizer {
  // values: the parsed content of tokenizer.json.
  constructor(values) {
    check(values, "classify");
    this.labels = values.labels;
    this.multiLabel = values.multi_label;
    this.thresholds = values.thresholds;
    this.maxLength = values.max_length;
    this.tokens = values.vocabulary;
    this.specialIds = values.special_ids;
    this._values = values;
    this._ids = new Map(values.vocabulary.map((token, index) => [token, index]));
    this._longest = values.vocabulary.reduce((most, token) => Math.max(most, [...token].length), 0);
    this._normalized = normalization(values.normalization);
    const white = inBrackets(values.white_space);
    const alone = inBrackets(values.isolated);
    this._white = new RegExp(`[${white}]+`, "gu");
    this._word = new RegExp(alone ? `[${alone}]|[^${white}${alone}]+` : `[^${white}]+`, "gu");
  }

  // The tokenizer of a tokenizer.json at an address.
  static async load(url) {
    return new Tokenizer(await fetchJson(url));
  }

  // Token ids of a text (a string, or a Uint8Array of UTF-8), without special tokens; at most `most` of them.
  tokenize(text, most = Infinity) {
    const ids = [];
    for (const id of this._split(this._normalize(text))) {
      if (ids.length >= most) break;
      ids.push(id);
    }
    return ids;
  }

  // Token ids between the special ones, at most `length` in all and at most what the model can read.
  encode(text, length = this.maxLength) {
    const most = Math.min(length, this.maxLength) - 2;
    return [this.specialIds.start, ...this.tokenize(text, most), this.specialIds.end];
  }

  // Int32Arrays of exactly this length; the mask is 1 at real tokens.
  pad(ids, length) {
    const tokenIds = new Int32Array(length).fill(this.specialIds.padding);
    const paddingMask = new Int32Array(length);
    tokenIds.set(ids);
    paddingMask.fill(1, 0, ids.length);
    return { tokenIds, paddingMask };
  }

  // The best label from probabilities, one for each label; with several labels the predicted ones, best first.
  answer(probabilities) {
    const order = this.labels.map((_, index) => index).sort((a, b) => probabilities[b] - probabilities[a]);
    if (!this.multiLabel) return this.labels[order[0]];
    return order.filter((index) => probabilities[index] >= this.thresholds[index]).map((index) => this.labels[index]);
  }

  _normalize(text) {
    const most = this._values.max_bytes;
    // Half of a surrogate pair is not a character; it is read as "?", as in training. The slice has one unit more than
    // bytes, so that it does not split a pair that is read.
    const bytes =
      typeof text === "string"
        ? new TextEncoder().encode(text.slice(0, most + 1).replace(/\p{Surrogate}/gu, "?"))
        : text;
    const whole = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(0, most));
    let normalized = "";
    for (const character of whole) normalized += this._normalized.get(character) ?? character;
    return normalized;
  }

  *_split(text) {
    const unknown = this.specialIds.unknown;
    if (this._values.tokenization === "char") {
      const clean = text.replace(this._white, " ").replace(/^ | $/g, "");
      for (const character of clean) yield this._ids.get(character) ?? unknown;
      return;
    }
    for (const [word] of text.matchAll(this._word)) {
      if (new TextEncoder().encode(word).length > this._values.max_word_bytes) yield unknown;
      else if (this._values.tokenization === "word") yield this._ids.get(word) ?? unknown;
      else yield* this._pieces([...word]);
    }
  }

  // The longest pieces from left to right; one unknown token if the rest of the word has no piece.
  _pieces(word) {
    const pieces = [];
    let start = 0;
    while (start < word.length) {
      const mark = start ? this._values.continuation : "";
      let end = Math.min(word.length, start + this._longest);
      let id;
      for (; end > start; end--) {
        id = this._ids.get(mark + word.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [this.specialIds.unknown];
      pieces.push(id);
      start = end;
    }
    return pieces;
  }
}

export class PairTokenizer {
  // values: the parsed content of tokenizer.json.
  constructor(values) {
    check(values, "match");
    this.target = values.target;
    this.labels = values.labels;
    this.threshold = values.threshold;
    const shared = { format: values.format, labels: values.labels, multi_label: false, thresholds: null };
    const parts = Object.entries(values.granularities);
    this.maxLength = Math.max(...parts.map(([, part]) => part.max_length));
    // For each pair of inputs, in the model's order: name of ids, name of mask, number of the text from 0, tokenizer.
    this.sides = parts.flatMap(([name, part]) => {
      const tokenizer = new Tokenizer({ ...shared, ...part });
      const before = parts.length > 1 ? `${name}_` : "";
      return ["a", "b"].map((side, text) => ({
        ids: `${before}token_ids_${side}`,
        mask: `${before}padding_mask_${side}`,
        text,
        tokenizer,
      }));
    });
  }

  // The tokenizer of a tokenizer.json at an address.
  static async load(url) {
    return new PairTokenizer(await fetchJson(url));
  }

  // Token ids of a pair between special ones, an array for each of `sides`; at most `length` in each.
  encode(textA, textB, length = this.maxLength) {
    return this.sides.map(({ text, tokenizer }) => tokenizer.encode([textA, textB][text], length));
  }

  // Int32Arrays by the names of the model's inputs, each of this length or of the most that the model reads of the text;
  // without a length they are not padded. A mask is 1 at real tokens.
  inputs(textA, textB, length) {
    const inputs = {};
    this.encode(textA, textB, length).forEach((ids, index) => {
      const { ids: idsName, mask, tokenizer } = this.sides[index];
      const { tokenIds, paddingMask } = tokenizer.pad(ids, length ? Math.min(length, tokenizer.maxLength) : ids.length);
      inputs[idsName] = tokenIds;
      inputs[mask] = paddingMask;
    });
    return inputs;
  }

  // The prediction from the output for one pair: { score }, with a threshold { score, match }; of classes { label }.
  answer(outputs) {
    if (this.target === "classes") {
      const best = this.labels.reduce((most, _, index) => (outputs[index] > outputs[most] ? index : most), 0);
      return { label: this.labels[best] };
    }
    const score = outputs[0];
    return this.threshold === null ? { score } : { score, match: score >= this.threshold };
  }
}

function check(values, expected) {
  if (values.format > FORMAT) {
    throw new RangeError(`tokenizer.json: expected format ${FORMAT} or older, got ${values.format}`);
  }
  const task = values.task ?? "classify";
  if (task !== expected) {
    throw new RangeError(`tokenizer.json: expected one of a model to ${expected}, got one to ${task}`);
  }
}

async function fetchJson(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: expected a tokenizer.json, got status ${response.status}`);
  return response.json();
}

function normalization(tables) {
  const changed = new Map();
  const set = (code, after) => changed.set(String.fromCodePoint(code), after);
  for (const [first, last, step, shift] of tables.shifted) {
    for (let code = first; code <= last; code += step) set(code, String.fromCodePoint(code + shift));
  }
  for (const [after, bounds] of Object.entries(tables.replaced)) {
    for (let i = 0; i < bounds.length; i += 2) {
      for (let code = bounds[i]; code <= bounds[i + 1]; code++) set(code, after);
    }
  }
  if (tables.hangul) {
    // Unicode's arithmetic of syllables: 21 vowels, 28 endings (one of them none).
    for (let code = 0; code < 11172; code++) {
      const [rest, tail] = [Math.floor(code / 28), code % 28];
      const letters = String.fromCodePoint(0x1100 + Math.floor(rest / 21), 0x1161 + (rest % 21));
      set(0xac00 + code, tail ? letters + String.fromCodePoint(0x11a7 + tail) : letters);
    }
  }
  return changed;
}

function inBrackets(bounds) {
  let written = "";
  for (let i = 0; i < bounds.length; i += 2) {
    written += `\\u{${bounds[i].toString(16)}}-\\u{${bounds[i + 1].toString(16)}}`;
  }
  return written;
}
