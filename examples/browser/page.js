// The page: a text in, its label, probabilities and attention out.

import { RUNTIMES } from "./runtimes.js";
import { Tokenizer } from "./tokenizer.js";
import { received, wordsOf } from "./words.js";

const TYPING_MS = 150;
const element = (id) => document.getElementById(id);
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

let tokenizer;
let model;
let runtime;
let shown = null; // The last answer: its attention, words and number of tokens.
let chosen = null; // Index of the word whose attention is shown; null: of all.
let asked = 0;

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
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `Example ${index + 1}` });
      button.title = text;
      button.addEventListener("click", () => {
        element("text").value = text;
        answer();
      });
      return button;
    }),
  );
  if (!element("text").value && texts.length) element("text").value = texts[0];
}

async function use(key) {
  const progress = element("progress");
  progress.hidden = false;
  progress.removeAttribute("value");
  element("runtime").disabled = true;
  model = undefined;
  runtime = RUNTIMES[key];
  const began = performance.now();
  model = await runtime.load(runtime.file, tokenizer, (received, total) => {
    if (total) Object.assign(progress, { max: total, value: received });
    say(`Loading ${runtime.file} … ${megabytes(received)}`);
  });
  progress.hidden = true;
  element("runtime").disabled = false;
  say(`${runtime.name} loaded ${megabytes(model.bytes)} in ${((performance.now() - began) / 1000).toFixed(1)} s.`);
  await answer();
}

async function answer() {
  const text = element("text").value;
  const turn = ++asked;
  if (!model) return;
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
  // While the model worked somebody may have typed on.
  if (turn !== asked) return;
  const cut = tokenizer.tokenize(text, model.length).length > ids.length - 2 ? `, the rest of the text was cut` : "";
  say(`${runtime.name} · ${(done - tokenized).toFixed(1)} ms · tokenizer ${(tokenized - began).toFixed(1)} ms · ${ids.length} tokens${cut}`);
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
  const most = Math.max(...shares);
  const focused = [...element("words").children].indexOf(document.activeElement);
  element("words").replaceChildren(
    ...words.map((word, index) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: word.text });
      button.classList.toggle("special", word.special);
      button.style.setProperty("--share", most ? shares[index] / most : 0);
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
  element("hint").textContent =
    chosen === null
      ? "The darker a word, the more of all attention goes to it. Choose a word to see where it looks."
      : `Where “${words[chosen].text}” looks. Choose it again to see all.`;
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
