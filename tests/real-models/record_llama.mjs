// Greedy tokens and token ids by llama.cpp, for record.py: record_llama.mjs NODE_MODULES < REQUEST
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { getLlama } = await import(pathToFileURL(`${process.argv[2]}/node-llama-cpp/dist/index.js`).href);
const asked = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({ gpu: false, build: "never", progressLogs: false, maxThreads: 2 });
const model = await llama.loadModel({ modelPath: asked.gguf });
const greedy = {};
for (const [name, prompt] of Object.entries(asked.prompts)) {
  const context = await model.createContext({ contextSize: prompt.length + asked.greedy + 8 });
  greedy[name] = [];
  for await (const token of context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    greedy[name].push(token);
    if (model.isEogToken(token) || greedy[name].length === asked.greedy) break;
  }
  await context.dispose();
}
const ids = asked.texts.map((text) => [...model.tokenize(text, false)]);
console.log(JSON.stringify({ greedy, ids }));
process.exit(0);
