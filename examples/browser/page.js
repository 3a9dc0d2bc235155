// The page: a text in, its label, probabilities and attention out.

import { RUNTIMES } from "./runtimes.js";
import { Tokenizer } from "./tokenizer.js";
import { received, wordsOf } from "./words.js";

const TYPING_MS = 150;
const element = (id) => document.getElementById(id);
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

const models = new Map(); // By runtime, loaded once each.
let tokenizer;
let current = null; // The runtime in use: its name and its model.
let shown = null; // The last answer: its attention, words and number of tokens.
let chosen = null; // Index of the word whose attention is shown; null: of all.
let asked = 0;
let working = Promise.resolve(); // A runtime takes one text at a time.

async function start() {
  tokenizer = await Tokenizer.load("model.tokenizer.json");
  const present = [];
  for (const [key, { file, name }] of Object.entries(RUNTIMES)) {
    if ((await fetch(file, { method: "HEAD" })).ok) present.push([key, name]);
  }
  if (!present.length) throw new Error("wanted model.tflite or model.onnx beside the page, given neither");
  element("runtime").replaceChildren(...present.map(([key, name]) => new Option(name, key)));
  await showExamples();
  await use(present[0][0]);
}

async function showExamples() {
  const response = await fetch("examples.json");
  const texts = response.ok ? await response.json() : [];
  element("examples").replaceChildren(
    ...texts.map((text, index) => {
      const button = Object.assign(document.createElement("button"), { type: "button", title: text });
      button.textContent = `Example ${index + 1}`;
      button.addEventListener("click", () => {
        element("text").value = text;
        answer().catch(complain);
      });
      return button;
    }),
  );
  if (!element("text").value && texts.length) element("text").value = texts[0];
}

async function use(key) {
  const { name, file } = RUNTIMES[key];
  current = null;
  element("runtime").disabled = true;
  try {
    if (!models.has(key)) models.set(key, await loaded(key));
    current = { name, model: models.get(key) };
  } finally {
    element("runtime").disabled = false;
    element("progress").hidden = true;
  }
  say(`${name} has loaded ${file}, ${megabytes(current.model.bytes)}.`);
  await answer();
}

async function loaded(key) {
  const { load, file } = RUNTIMES[key];
  const progress = element("progress");
  progress.hidden = false;
  progress.removeAttribute("value");
  const model = await load(file, tokenizer, (received, total) => {
    if (total) Object.assign(progress, { max: total, value: received });
    say(`Loading ${file} … ${megabytes(received)}`);
  });
  // The first answer of a runtime takes longer than all later ones.
  await model.answer(tokenizer.encode("", model.length));
  return model;
}

function answer() {
  const turn = ++asked;
  working = working.catch(() => {}).then(() => answerOnce(turn));
  return working;
}

async function answerOnce(turn) {
  const text = element("text").value;
  // While the model worked somebody may have typed on, or chosen another runtime.
  if (turn !== asked || !current) return;
  const { name, model } = current;
  if (!text.trim()) {
    element("answer").hidden = element("attention").hidden = true;
    say("Type a text to see what the model makes of it.");
    return;
  }
  const began = performance.now();
  const ids = tokenizer.encode(text, model.length);
  const tokenized = performance.now();
  const { probabilities, attention } = await model.answer(ids);
  const done = performance.now();
  if (turn !== asked) return;
  const milliseconds = (from, to) => `${(to - from).toFixed(1)} ms`;
  const cut = tokenizer.tokenize(text, model.length).length > ids.length - 2 ? " · the end of the text was cut off" : "";
  say(
    `${name} · ${milliseconds(tokenized, done)} · tokenizer ${milliseconds(began, tokenized)} · ` +
      `${ids.length} tokens${cut}`,
  );
  showAnswer(probabilities);
  shown = attention && { attention, words: wordsOf(tokenizer, text, ids), real: ids.length };
  chosen = null;
  showPickers();
  showAttention();
}

function showAnswer(probabilities) {
  const answered = tokenizer.answer(probabilities);
  const given = new Set([answered].flat());
  element("label").textContent = given.size ? [...given].join(", ") : "No label reaches its threshold";
  const order = tokenizer.labels.map((_, index) => index).sort((a, b) => probabilities[b] - probabilities[a]);
  element("bars").replaceChildren(
    ...order.map((index) => {
      const row = document.createElement("li");
      row.className = given.has(tokenizer.labels[index]) ? "given" : "";
      row.style.setProperty("--share", probabilities[index]);
      row.append(part("name", tokenizer.labels[index]), part("bar", ""), part("value", percent.format(probabilities[index])));
      return row;
    }),
  );
  element("answer").hidden = false;
}

function showPickers() {
  if (!shown) return;
  const { layers, heads } = shown.attention;
  const fill = (id, count, last) => {
    if (element(id).options.length === count + 1) return;
    const each = Array.from({ length: count }, (_, i) => new Option(String(i + 1), String(i)));
    element(id).replaceChildren(...each, new Option("mean", ""));
    element(id).value = last;
  };
  fill("layer", layers, String(layers - 1));
  fill("head", heads, "");
}

function showAttention() {
  element("attention").hidden = !shown;
  if (!shown) return;
  const pick = (id) => (element(id).value === "" ? null : Number(element(id).value));
  const { attention, words, real } = shown;
  const shares = received(attention, words, real, pick("layer"), pick("head"), chosen === null ? null : words[chosen]);
  const [least, most] = [Math.min(...shares), Math.max(...shares)];
  const focused = [...element("words").children].indexOf(document.activeElement);
  element("words").replaceChildren(
    ...words.map((word, index) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: word.text });
      button.classList.toggle("special", word.special);
      button.style.setProperty("--share", most > least ? (shares[index] - least) / (most - least) : 0);
      button.title = percent.format(shares[index]);
      button.setAttribute("aria-label", `${word.text}, ${percent.format(shares[index])}`);
      button.setAttribute("aria-pressed", String(chosen === index));
      button.addEventListener("click", () => {
        chosen = chosen === index ? null : index;
        showAttention();
      });
      return button;
    }),
  );
  element("words").children[focused]?.focus();
  const scale = `Colour: from ${percent.format(least)} to ${percent.format(most)} of the attention a token.`;
  element("hint").textContent =
    chosen === null
      ? `${scale} Choose a word to see where it looks.`
      : `${scale} Where “${words[chosen].text}” looks; choose it again to see all.`;
}

function part(name, text) {
  return Object.assign(document.createElement("span"), { className: name, textContent: text });
}

function say(message) {
  element("status").textContent = message;
  element("status").classList.remove("error");
}

function complain(error) {
  say(error.message);
  element("status").classList.add("error");
  element("progress").hidden = true;
}

let typing;
element("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => answer().catch(complain), TYPING_MS);
});
element("runtime").addEventListener("change", () => use(element("runtime").value).catch(complain));
element("layer").addEventListener("change", showAttention);
element("head").addEventListener("change", showAttention);
start().catch(complain);
