// The demo page: shows the label, the probabilities and the attention for a text.

import { RUNTIMES } from "./runtimes.js";
import { Tokenizer } from "./tokenizer.js";
import { received, wordsOf } from "./words.js";

const TYPING_MS = 150;
const element = (id) => document.getElementById(id);
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

const models = new Map(); // By runtime; each is loaded once.
let tokenizer;
let current = null; // The selected runtime: its name and its model.
let shown = null; // The last prediction: its attention, words and number of tokens.
let chosen = null; // Index of the word whose attention is shown; null: all words.
let requested = 0;
let working = Promise.resolve(); // A runtime processes one text at a time.

async function start() {
  tokenizer = await Tokenizer.load("model.tokenizer.json");
  const present = [];
  for (const [key, { file, name }] of Object.entries(RUNTIMES)) {
    if ((await fetch(file, { method: "HEAD" })).ok) present.push([key, name]);
  }
  if (!present.length) throw new Error("expected model.tflite or model.onnx next to the page, got neither");
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
        predict().catch(showError);
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
    if (!models.has(key)) models.set(key, await load(key));
    current = { name, model: models.get(key) };
  } finally {
    element("runtime").disabled = false;
    element("progress").hidden = true;
  }
  showStatus(`${name} has loaded ${file}, ${megabytes(current.model.bytes)}.`);
  await predict();
}

async function load(key) {
  const { load: loadModel, file } = RUNTIMES[key];
  const progress = element("progress");
  progress.hidden = false;
  progress.removeAttribute("value");
  const model = await loadModel(file, tokenizer, (received, total) => {
    if (total) Object.assign(progress, { max: total, value: received });
    showStatus(`Loading ${file} … ${megabytes(received)}`);
  });
  // Warm-up: the first prediction of a runtime is slower than later ones.
  await model.predict(tokenizer.encode("", model.length));
  return model;
}

function predict() {
  const request = ++requested;
  working = working.catch(() => {}).then(() => predictOnce(request));
  return working;
}

async function predictOnce(request) {
  const text = element("text").value;
  // The text or the runtime may have changed while the model was running.
  if (request !== requested || !current) return;
  const { name, model } = current;
  if (!text.trim()) {
    element("prediction").hidden = element("attention").hidden = true;
    showStatus("Type a text to see a prediction.");
    return;
  }
  const began = performance.now();
  const ids = tokenizer.encode(text, model.length);
  const tokenized = performance.now();
  const { probabilities, attention } = await model.predict(ids);
  const done = performance.now();
  if (request !== requested) return;
  const milliseconds = (from, to) => `${(to - from).toFixed(1)} ms`;
  const truncated = tokenizer.tokenize(text, model.length).length > ids.length - 2 ? " · the text was truncated" : "";
  showStatus(
    `${name} · ${milliseconds(tokenized, done)} · tokenizer ${milliseconds(began, tokenized)} · ` +
      `${ids.length} tokens${truncated}`,
  );
  showPrediction(probabilities);
  shown = attention && { attention, words: wordsOf(tokenizer, text, ids), real: ids.length };
  chosen = null;
  showPickers();
  showAttention();
}

function showPrediction(probabilities) {
  const predicted = new Set([tokenizer.answer(probabilities)].flat());
  element("label").textContent = predicted.size ? [...predicted].join(", ") : "No label reaches its threshold";
  const order = tokenizer.labels.map((_, index) => index).sort((a, b) => probabilities[b] - probabilities[a]);
  element("bars").replaceChildren(
    ...order.map((index) => {
      const row = document.createElement("li");
      row.className = predicted.has(tokenizer.labels[index]) ? "given" : "";
      row.style.setProperty("--share", probabilities[index]);
      row.append(part("name", tokenizer.labels[index]), part("bar", ""), part("value", percent.format(probabilities[index])));
      return row;
    }),
  );
  element("prediction").hidden = false;
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
  const scale = `Color: ${percent.format(least)} to ${percent.format(most)} of the attention per token.`;
  element("hint").textContent =
    chosen === null
      ? `${scale} Select a word to see its attention to other words.`
      : `${scale} Attention of “${words[chosen].text}”; select it again for all words.`;
}

function part(name, text) {
  return Object.assign(document.createElement("span"), { className: name, textContent: text });
}

function showStatus(message) {
  element("status").textContent = message;
  element("status").classList.remove("error");
}

function showError(error) {
  showStatus(error.message);
  element("status").classList.add("error");
  element("progress").hidden = true;
}

let typing;
element("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => predict().catch(showError), TYPING_MS);
});
element("runtime").addEventListener("change", () => use(element("runtime").value).catch(showError));
element("layer").addEventListener("change", showAttention);
element("head").addEventListener("change", showAttention);
start().catch(showError);
