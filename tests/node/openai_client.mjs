// Uses a gateway with the official `openai` package as it is; one scenario a run.
//
//   node openai_client.mjs SCENARIO http://127.0.0.1:8000 MODEL [KEY [ADMIN_KEY]]
//
// What came of it goes to stdout as JSON; tests/controller/gateway/test_node_client.py says
// what it must be.

import OpenAI from "openai";

const LIMIT_MS = 20_000;

const [scenario, url, model, key = "none", adminKey = "none"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const question = [{ role: "user", content: "What is the capital of France?" }];
const endless = {
  model,
  messages: [{ role: "user", content: "Count to a thousand." }],
  max_tokens: 900,
  logit_bias: { 0: -100, 1: -100, 2: -100 }, // the tokens with which the models of tests end
};

const scenarios = {
  async chat() {
    const asked = { model, messages: question, temperature: 0, max_tokens: 20 };
    return await client.chat.completions.create(asked);
  },

  async stream() {
    const asked = { model, messages: question, temperature: 0, max_tokens: 20 };
    const chunks = [];
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
      chunks.push(chunk);
    }
    return chunks;
  },

  // The package calls the function itself, and sends back what it was given.
  async tools() {
    const run = async (stream) => {
      const called = [];
      const get_weather = (sent) => called.push(sent) && "4711 degrees";
      const properties = { city: { type: "string" }, days: { type: "integer" } };
      const parameters = { type: "object", properties, required: ["city"] };
      const known = { name: "get_weather", description: "the weather", parameters };
      const runner = client.chat.completions.runTools({
        model,
        messages: [{ role: "user", content: "one call, please" }],
        temperature: 0,
        tools: [{ type: "function", function: { ...known, function: get_weather, parse: JSON.parse } }],
        stream,
      });
      return { said: await runner.finalContent(), called };
    };
    return [await run(false), await run(true)];
  },

  async models() {
    const names = [];
    for await (const listed of client.models.list()) names.push(listed.id);
    return { names, one: (await client.models.retrieve(model)).id };
  },

  async many() {
    const ask = async (number) => {
      const content = `Say a word about the number ${number}.`;
      const asked = { model, messages: [{ role: "user", content }], temperature: 0, max_tokens: 8 };
      let text = "";
      for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
        text += chunk.choices[0].delta.content ?? "";
      }
      return text;
    };
    const alone = [await ask(0), await ask(1), await ask(2)];
    const together = await Promise.all(Array.from({ length: 12 }, (_, index) => ask(index % 3)));
    return { alone, together };
  },

  async errors() {
    const chat = (fields) => client.chat.completions.create({ model, messages: question, ...fields });
    return [
      await failure(chat({ model: "gpt-17" })),
      await failure(chat({ temperature: 9 })),
      await failure(chat({ functions: [{ name: "now" }] })),
      await failure(client.models.retrieve("gpt-17")),
    ];
  },

  async wrong_key() {
    return await failure(client.withOptions({ apiKey: "wrong" }).models.list());
  },

  // The key allows one request at once, and a stream has that place at first.
  async retries() {
    const hold = new AbortController();
    const held = await client.chat.completions.create(
      { ...endless, n: 8, stream: true },
      { signal: hold.signal },
    );
    await held[Symbol.asyncIterator]().next();
    const asked = { model, messages: question, max_tokens: 2 };
    const impatient = await failure(client.chat.completions.create(asked));
    const before = await ended("rate_limit_exceeded");
    const patient = client.chat.completions.create(asked, { maxRetries: 8 });
    const refused = async () => (await ended("rate_limit_exceeded")) > before;
    await until(refused, "the patient one was refused");
    hold.abort();
    return { impatient, patient: await patient };
  },

  async cancelling() {
    const leave = new AbortController();
    const stream = await client.chat.completions.create(
      { ...endless, stream: true },
      { signal: leave.signal },
    );
    const whole = failure(client.chat.completions.create(endless, { signal: leave.signal }));
    await until(async () => (await open()) === 2, "both are being answered");
    let chunks = 0;
    for await (const _ of stream) {
      if ((chunks += 1) === 3) leave.abort();
    }
    const left = performance.now();
    await until(async () => (await open()) === 0, "both ended");
    return { gone_after_ms: performance.now() - left, whole: await whole };
  },

  async timeout() {
    const before = await ended("client_gone");
    const said = await failure(client.chat.completions.create(endless, { timeout: 500 }));
    const left = performance.now();
    await until(async () => (await ended("client_gone")) > before, "it ended");
    return { gone_after_ms: performance.now() - left, said };
  },
};

// Which of the package's errors it was.
async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    const kinds = ["NotFoundError", "BadRequestError", "AuthenticationError", "RateLimitError"];
    kinds.push("APIUserAbortError", "APIConnectionTimeoutError");
    const { status, code, param, message, requestID } = error;
    const retry_after = error.headers?.get("retry-after") ?? null;
    const kind = kinds.find((name) => error instanceof OpenAI[name]) ?? error.constructor.name;
    return { kind, status, code, param, message, request_id: requestID, retry_after };
  }
  throw new Error("this should have failed");
}

async function metrics() {
  const answer = await fetch(`${url}/metrics`, { headers: { "x-api-key": adminKey } });
  if (!answer.ok) throw new Error(`/metrics: ${answer.status}`);
  return (await answer.text()).split("\n");
}

// How many requests are being answered.
async function open() {
  const line = (await metrics()).find((line) => line.startsWith("mlx_gateway_open_requests "));
  return Number(line.split(" ")[1]);
}

// How many requests ended with this code.
async function ended(code) {
  const lines = (await metrics()).filter((line) => line.includes(`code="${code}"`));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function until(condition, what) {
  const deadline = performance.now() + LIMIT_MS;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${LIMIT_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

console.log(JSON.stringify(await scenarios[scenario]()));
