// OpenAI's package for JavaScript: chats and texts, whole and streamed, documents beside the messages.
import OpenAI from "openai";
import { example, main, packageVersion, times } from "./kit.mjs";

const { query, documents } = example();
const client = (job) => new OpenAI({ baseURL: `${job.url}/v1`, apiKey: "none", maxRetries: 0, timeout: 600_000 });
const messages = [{ role: "user", content: query }];
const right = (text) => { if (!text.trim().startsWith("lyon")) throw new Error(text); };

const checks = {
  async plain(job) {
    const answer = await client(job).chat.completions.create({ model: job.model, messages, max_tokens: 4, documents });
    right(answer.choices[0].message.content);
  },
  async stream(job) {
    const stream = await client(job).chat.completions.create({ model: job.model, messages, max_tokens: 4, documents, stream: true, stream_options: { include_usage: true } });
    let text = "", usage;
    for await (const part of stream) { text += part.choices[0]?.delta?.content ?? ""; usage = part.usage ?? usage; }
    right(text);
    if (usage.completion_tokens !== 4) throw new Error(JSON.stringify(usage));
  },
  async helper(job) {
    const runner = client(job).chat.completions.stream({ model: job.model, messages, max_tokens: 4, documents });
    right(await runner.finalContent());
  },
  async turns(job) {
    const history = [{ role: "system", content: "it rains slowly today ." }, ...messages, { role: "assistant", content: "lyon ." }, ...messages];
    const answer = await client(job).chat.completions.create({ model: job.model, messages: history, max_completion_tokens: 4, documents, temperature: 0 });
    if (!answer.choices[0].message.content) throw new Error(JSON.stringify(answer));
  },
  async text(job) {
    right((await client(job).completions.create({ model: job.model, prompt: query, max_tokens: 4, documents })).choices[0].text);
  },
  async textStream(job) {
    let text = "";
    for await (const part of await client(job).completions.create({ model: job.model, prompt: query, max_tokens: 4, documents, stream: true })) text += part.choices[0]?.text ?? "";
    right(text);
  },
};

async function* ask(job, prompt) {
  const stream = await client(job).chat.completions.create({ model: job.model, messages: [{ role: "user", content: prompt }], max_tokens: job.answerTokens, stream: true });
  for await (const part of stream) yield part.choices[0]?.delta?.content;
}

await main({ version: packageVersion("openai"), checks, measured: (job, result) => times(job, result, ask) });
