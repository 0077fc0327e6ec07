// What the clients in JavaScript share: the same task, result and clock as kit.py. They are copied into target/clients/node, where
// the packages are, so that imports find them.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const HERE = dirname(fileURLToPath(import.meta.url));
const ANSWER_TOKENS = 4;

function task() {
  const options = { model: { type: "string", default: "demo" }, folder: { type: "string" }, scratch: { type: "string" }, style: { type: "string" },
    requests: { type: "string", default: "20" }, tokens: { type: "string", default: "4096" } };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  return { ...values, url: positionals[0], part: positionals[1], requests: +values.requests, tokens: +values.tokens, answerTokens: ANSWER_TOKENS };
}

/** The demo's request, whose answer begins with `lyon`; CLIENTS_ROOT is the project's root. */
export function example() {
  const chat = JSON.parse(readFileSync(join(process.env.CLIENTS_ROOT, "examples/models/demo/chat.json")));
  return { query: chat.messages[0].content, documents: chat.documents };
}

export const packageVersion = (name) => JSON.parse(readFileSync(join(HERE, "node_modules", name, "package.json"))).version;

/** One expectation: counted, and the first that fails is the note. */
async function attempt(result, name, action) {
  result.requests += 1;
  try {
    await action();
  } catch (error) {
    result.failures += 1;
    result.note ||= `${name}: ${error?.name}: ${error?.message} ${error?.responseBody ?? ""}`.replace(/\s+/g, " ").slice(0, 300);
  }
}

/** A prompt of N tokens, another one for each number: as kit.py's, a token a word. */
function prompt(number, tokens) {
  let state = (2654435761 * (number + 1)) % 4294967296;
  const draw = (letters) => {
    state = (1664525 * state + 1013904223) % 4294967296;
    return letters[Math.floor(state / 65536) % letters.length];
  };
  const word = () => draw("bcdfghjklm") + draw("aeiou") + draw("bcdfghjklm") + draw("aeiou");
  return Array.from({ length: tokens }, word).join(" ");
}

/** Milliseconds to the first text of `ask(job, prompt)`, for each prompt. */
export async function times(job, result, ask) {
  // The first request, which also loads the client's own code, is not timed.
  await attempt(result, "first request", async () => { for await (const _ of ask(job, "the first request")); });
  for (let number = 0; number < job.requests; number++) {
    const text = prompt(number + 1000, job.tokens);
    await attempt(result, "stream", async () => {
      const began = performance.now();
      let first;
      for await (const part of ask(job, text)) if (part && first === undefined) first = performance.now();
      if (first === undefined) throw new Error("the stream had no text");
      result.ttft_ms.push(first - began);
    });
  }
}

export async function main({ version, checks, measured }) {
  const job = task();
  const result = { version, requests: 0, failures: 0, ttft_ms: [], mean_ms: null, median_ms: null, note: "" };
  if (job.part === "ttft") await measured(job, result);
  else for (const [name, check] of Object.entries(checks)) await attempt(result, name, () => check(job));
  console.log(JSON.stringify(result));
}
