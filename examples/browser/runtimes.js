// Runs an exported model in the browser: the .tflite with LiteRT, the .onnx with ONNX Runtime.
//
//   const model = await RUNTIMES.litert.load("model.tflite", tokenizer);
//   const { probabilities, attention } = await model.predict(ids);
//
// ids: from tokenizer.encode(text, model.length). probabilities: a Float32Array with one value for each label.
// attention: null if the export has none, otherwise { values: Float32Array, layers, heads, length } with values
// [layers, heads, length, length] in row-major order.

const MODULES = new URL("./node_modules/", import.meta.url);

export const RUNTIMES = {
  litert: { name: "LiteRT", file: "model.tflite", load: loadLitert },
  onnx: { name: "ONNX Runtime", file: "model.onnx", load: loadOnnx },
};

// Downloads an address. Calls onProgress(received, total) for each part; total is 0 if the server does not send it.
export async function download(url, onProgress = () => {}) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: expected a model, got status ${response.status}`);
  const total = Number(response.headers.get("Content-Length")) || 0;
  const parts = [];
  let received = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onProgress((received += value.length), total);
  }
  const bytes = new Uint8Array(received);
  let place = 0;
  for (const part of parts) {
    bytes.set(part, place);
    place += part.length;
  }
  return bytes;
}

async function loadLitert(url, tokenizer, onProgress) {
  const [{ Tensor, getGlobalLiteRtPromise, loadAndCompile, loadLiteRt }, bytes] = await Promise.all([
    import("@litertjs/core"),
    download(url, onProgress),
  ]);
  await (getGlobalLiteRtPromise() ?? loadLiteRt(new URL("@litertjs/core/wasm/", MODULES).href));
  const model = await loadAndCompile(bytes, { accelerator: "wasm" });
  const signatures = Object.values(model.signatures).filter(({ key }) => !key.startsWith("embed"));
  const lengths = signatures.map((signature) => signature.getInputDetails()[0].shape[1]);
  const longest = Math.max(...lengths);
  if (!(Math.min(...lengths) > 0)) {
    throw new RangeError(`${url}: expected fixed lengths (export without --dynamic-length), got ${lengths}`);
  }

  async function predict(ids) {
    // The shortest signature that holds the text.
    const length = Math.min(...lengths.filter((each) => each >= Math.min(ids.length, longest)));
    const tensor = (values) => new Tensor(values, [1, length]);
    const { tokenIds, paddingMask } = tokenizer.pad(ids, length);
    const inputs = {
      token_ids: tensor(tokenIds),
      padding_mask: tensor(paddingMask),
      segment_ids: tensor(new Int32Array(length)),
    };
    const outputs = await signatures[lengths.indexOf(length)].run(inputs);
    const shape = outputs.attention && [...outputs.attention.type.layout.dimensions];
    const result = {
      probabilities: Float32Array.from(await outputs.probabilities.data()),
      attention: shape ? weights(Float32Array.from(await outputs.attention.data()), shape) : null,
    };
    // The browser does not garbage-collect LiteRT's memory.
    for (const used of [...Object.values(inputs), ...Object.values(outputs)]) used.delete();
    return result;
  }

  return { length: Math.min(longest, tokenizer.maxLength), bytes: bytes.length, predict };
}

async function loadOnnx(url, tokenizer, onProgress) {
  const [ort, bytes] = await Promise.all([import("onnxruntime-web/wasm"), download(url, onProgress)]);
  ort.env.wasm.wasmPaths = new URL("onnxruntime-web/dist/", MODULES).href;
  // Threads need headers that most static servers do not send.
  ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? 0 : 1;
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });

  async function predict(ids) {
    const { tokenIds, paddingMask } = tokenizer.pad(ids, ids.length);
    const tensor = (values) => new ort.Tensor("int32", values, [1, ids.length]);
    const outputs = await session.run({ token_ids: tensor(tokenIds), padding_mask: tensor(paddingMask) });
    const found = outputs.attention;
    return {
      probabilities: outputs.probabilities.data,
      attention: found ? weights(found.data, found.dims) : null,
    };
  }

  return { length: tokenizer.maxLength, bytes: bytes.length, predict };
}

function weights(values, [, layers, heads, length]) {
  return { values, layers, heads, length };
}
