// The Vercel AI SDK: an agent with two tools, streamed, and an object of a schema.
//
// node ai_sdk_task.mjs URL MODEL chat|responses|messages

import assert from "node:assert";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { functions, schemas, TASK } from "./tools.mjs";

const [url, name, api] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const model = {
  chat: () =>
    createOpenAICompatible({ name: "cluster", baseURL, supportsStructuredOutputs: true })(name),
  responses: () => createOpenAI({ baseURL, apiKey: "none" }).responses(name),
  messages: () => createAnthropic({ baseURL, apiKey: "none" })(name),
}[api]();

const tools = Object.fromEntries(
  Object.entries(functions).map(([each, execute]) => [
    each,
    tool({ description: each, inputSchema: jsonSchema(schemas[each]), execute }),
  ]),
);
const streamed = streamText({
  model, system: "Be brief.", prompt: TASK, tools, stopWhen: stepCountIs(5), maxRetries: 0,
  onError: ({ error }) => { throw error; },
});
for await (const _ of streamed.textStream);
console.log(await streamed.text);

const how = api === "messages" ? "by json" : "as JSON";
const { output } = await generateText({
  model, prompt: `PERSON ${how}: who is it?`, maxRetries: 0,
  output: Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) }),
});
assert.deepStrictEqual(output, { name: "Ada", age: 36 });
