// Classifies texts with the exported models, each in its own runtime, for clients/browser.py.
//
// Every function returns { probabilities: an array for each text, seconds: for all texts, without loading }.

import { RUNTIMES } from "./runtimes.js";
import { Tokenizer } from "./tokenizer.js";

const clock = () => performance.now() / 1000;

export const litert = (texts) => classifyIds("litert", "plain.tflite", texts);
export const onnx = (texts) => classifyIds("onnx", "plain.onnx", texts);

async function classifyIds(runtime, file, texts) {
  const tokenizer = await Tokenizer.load("plain.tokenizer.json");
  const model = await RUNTIMES[runtime].load(file, tokenizer);
  const began = clock();
  const probabilities = [];
  for (const text of texts) {
    probabilities.push([...(await model.predict(tokenizer.encode(text, model.length))).probabilities]);
  }
  return { probabilities, seconds: clock() - began };
}

export async function mediapipe(texts, labels) {
  const { FilesetResolver, TextClassifier } = await import("@mediapipe/tasks-text");
  const files = await FilesetResolver.forTextTasks("./node_modules/@mediapipe/tasks-text/wasm");
  const classifier = await TextClassifier.createFromModelPath(files, "plain.tflite");
  const began = clock();
  const probabilities = texts.map((text) => {
    const { categories } = classifier.classify(text).classifications[0];
    const scores = new Map(categories.map((category) => [category.categoryName, category.score]));
    return labels.map((label) => scores.get(label) ?? null);
  });
  return { probabilities, seconds: clock() - began };
}
