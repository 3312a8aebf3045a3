// OpenAI's SDK for Node: its own runner of tools, and a loop of Responses.
//
// node openai_task.mjs URL MODEL chat|responses

import OpenAI from "openai";

import { functions, schemas, TASK } from "./tools.mjs";

const [url, model, api] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

async function chat() {
  const tools = Object.entries(functions).map(([name, run]) => ({
    type: "function",
    function: { name, parameters: schemas[name], parse: JSON.parse, function: run },
  }));
  const messages = [{ role: "user", content: TASK }];
  const runner = client.chat.completions.runTools({ model, messages, tools, stream: true });
  return await runner.finalContent();
}

async function responses() {
  const tools = Object.entries(schemas).map(([name, parameters]) => ({
    type: "function", name, parameters, strict: true,
  }));
  let input = [{ role: "user", content: TASK }];
  for (;;) {
    const stream = client.responses.stream({ model, input, tools, store: false,
      include: ["reasoning.encrypted_content"] });
    const response = await stream.finalResponse();
    const calls = response.output.filter((item) => item.type === "function_call");
    if (calls.length === 0) return response.output_text;
    input = [...input, ...response.output];
    for (const call of calls) {
      const output = functions[call.name](JSON.parse(call.arguments));
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

console.log(await (api === "chat" ? chat() : responses()));
