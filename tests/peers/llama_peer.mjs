// llama.cpp, prebuilt, one thread: a child of run.py that speaks as lines.py says.
//   llama_peer.mjs NODE_MODULES
// A batch is computed by llama_decode and its tokens are drawn by llama.cpp's greedy sampler, as the
// package's addon calls them. Variables of the environment: LLAMA_BATCH, tokens of a batch; LLAMA_KV,
// the type of keys and values; LLAMA_FLASH, where attention is flash attention: `prefill` (there it
// is faster, in decoding slower), `both` or `no`.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { getLlama } = await import(pathToFileURL(`${process.argv[2]}/node-llama-cpp/dist/index.js`).href);
const batchSize = Number(process.env.LLAMA_BATCH || 512);
const flash = process.env.LLAMA_FLASH || "prefill";
let llama, model, sampler, room, keys, single, decoding, sequences;

// Tokens of rows that stand at `first` of a sequence; the last one's place in the batch, where
// logits are wanted.
async function rows(context, sequence, first, ids) {
  let at;
  for (let begin = 0; begin < ids.length; begin += batchSize) {
    const part = ids.slice(begin, begin + batchSize);
    const last = begin + part.length === ids.length;
    context._ctx.initBatch(part.length);
    at = context._ctx.addToBatch(sequence, first + begin, Uint32Array.from(part), Uint32Array.from(last ? [part.length - 1] : []))[0];
    await context._ctx.decodeBatch();
  }
  return at;
}

const makeContext = (count, flashAttention) =>
  model.createContext({
    contextSize: room, sequences: count, batchSize, flashAttention, threads: { ideal: 1, min: 1 },
    experimentalKvCacheKeyType: keys, experimentalKvCacheValueType: keys, failedCreationRemedy: false,
  });

// Which of the processor's variants was loaded.
const variant = () => readFileSync("/proc/self/maps", "utf8").match(/libggml-cpu-([a-z0-9]+)\.so/)?.[1] ?? "unknown";

const orders = {
  async load({ gguf, dtype, kind, room: tokens }) {
    llama = await getLlama({ gpu: false, build: "never", progressLogs: false, maxThreads: 1, logLevel: "warn" });
    model = await llama.loadModel({ modelPath: gguf, useMmap: false });
    sampler = new llama._bindings.AddonSampler(model._model);
    sampler.applyConfig({ temperature: 0 });
    room = tokens;
    keys = (process.env.LLAMA_KV || (dtype === "f32" ? "F32" : "F16")).toUpperCase();
    single = await makeContext(1, flash !== "no");
    const release = llama.llamaCppRelease?.release;
    const versions = `llama.cpp ${release} (node-llama-cpp 3.21.1, ${variant()})`;
    return { versions, settings: `${kind} weights, ${keys.toLowerCase()} keys and values, batches of ${batchSize}, flash attention: ${flash}` };
  },
  async check({ ids, top }) {
    single._ctx.disposeSequence(0);
    const at = await rows(single, 0, 0, ids);
    const [, listed] = await single._ctx.sampleToken(at, sampler, true);
    const logprobs = [];
    for (let i = 0; i < 2 * top; i += 2) logprobs.push([listed[i], Math.log(listed[i + 1])]);
    return { logprobs };
  },
  async prefill({ ids }) {
    single._ctx.disposeSequence(0);
    const began = performance.now();
    const token = await single._ctx.sampleToken(await rows(single, 0, 0, ids), sampler);
    return { seconds: (performance.now() - began) / 1e3, token };
  },
  async begin({ prompts }) {
    decoding = await makeContext(prompts.length, flash === "both");
    sequences = [];
    for (const [number, ids] of prompts.entries()) {
      const token = await decoding._ctx.sampleToken(await rows(decoding, number, 0, ids), sampler);
      sequences.push({ token, length: ids.length, drawn: [token] });
    }
    return { tokens: sequences.map((one) => one.token) };
  },
  async decode({ steps }) {
    const began = performance.now();
    for (let step = 0; step < steps; step++) {
      decoding._ctx.initBatch(sequences.length);
      const places = sequences.map((one, number) => decoding._ctx.addToBatch(number, one.length, Uint32Array.of(one.token), Uint32Array.of(0))[0]);
      await decoding._ctx.decodeBatch();
      for (const [number, one] of sequences.entries()) {
        one.token = await decoding._ctx.sampleToken(places[number], sampler);
        one.length += 1;
        one.drawn.push(one.token);
      }
    }
    return { seconds: (performance.now() - began) / 1e3, tokens: sequences.map((one) => one.drawn.slice(-steps)) };
  },
  async end() {
    await decoding.dispose();
    return { tokens: sequences.map((one) => one.drawn) };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...order } = JSON.parse(line);
  process.stdout.write(JSON.stringify(await orders[name](order)) + "\n");
}
process.exit(0);
