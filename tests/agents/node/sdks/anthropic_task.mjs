// Anthropic's SDK for Node: its own runner of tools, streamed.
//
// node anthropic_task.mjs URL MODEL messages

import Anthropic from "@anthropic-ai/sdk";

import { functions, schemas, TASK } from "./tools.mjs";

const [baseURL, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const tools = Object.entries(functions).map(([name, run]) => ({
  name, description: name, input_schema: schemas[name], run, parse: (input) => input,
}));
const runner = client.beta.messages.toolRunner({
  model, max_tokens: 32000, tools, stream: true, messages: [{ role: "user", content: TASK }],
});
let last;
for await (const stream of runner) last = await stream.finalMessage();
console.log(last.content.at(-1).text);
