// Vercel's AI SDK with its provider for compatible services: whole and streamed, documents through `transformRequestBody`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { example, main, packageVersion, times } from "./kit.mjs";

const { query, documents } = example();
const right = (text) => { if (!text.trim().startsWith("lyon")) throw new Error(text); };
const provider = (job, more) => createOpenAICompatible({
  name: "tributary", baseURL: `${job.url}/v1`, apiKey: "none", includeUsage: true, transformRequestBody: (body) => ({ ...body, ...more }),
});
const chat = (job) => ({ model: provider(job, { documents }).chatModel(job.model), maxRetries: 0, maxOutputTokens: 4 });

const checks = {
  async plain(job) { right((await generateText({ ...chat(job), prompt: query })).text); },
  async stream(job) {
    const answer = streamText({ ...chat(job), prompt: query, onError: () => {} });
    let text = "";
    for await (const part of answer.textStream) text += part;
    right(text);
    if ((await answer.usage).outputTokens !== 4) throw new Error(JSON.stringify(await answer.usage));
  },
  async turns(job) {
    const messages = [{ role: "user", content: query }, { role: "assistant", content: "lyon ." }, { role: "user", content: query }];
    const answer = await generateText({ ...chat(job), system: "it rains slowly today .", messages, temperature: 0 });
    if (!answer.text) throw new Error("no text");
  },
  async providerOptions(job) {
    const model = provider(job, {}).chatModel(job.model);
    const answer = await generateText({ model, prompt: query, maxRetries: 0, maxOutputTokens: 4, providerOptions: { tributary: { documents } } });
    right(answer.text);
  },
  async text(job) {
    // Its prompt is written as a dialogue ("user:"), which the demo model has not learned: any text counts.
    const answer = await generateText({ model: provider(job, { documents }).completionModel(job.model), prompt: query, maxRetries: 0, maxOutputTokens: 4 });
    if (!answer.text) throw new Error("no text");
  },
};

async function* ask(job, prompt) {
  const answer = streamText({ model: provider(job, {}).chatModel(job.model), prompt, maxRetries: 0, maxOutputTokens: job.answerTokens, onError: () => {} });
  yield* answer.textStream;
}

await main({ version: packageVersion("@ai-sdk/openai-compatible"), checks, measured: (job, result) => times(job, result, ask) });
