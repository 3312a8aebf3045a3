// Streams one answer from a cluster, by docs/wire.md alone.
//
//   node stream.mjs nats://127.0.0.1:4222 "What is the capital of France?"
//   node stream.mjs nats://127.0.0.1:4222 "What time is it?" \
//     '{"tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "required"}'
//
// Text goes to stdout; the end, as one line of JSON with reasoning and tool calls, to stderr. Exit
// status 1 on an error.

import { connect, createInbox } from "@nats-io/transport-node";

const SILENCE_LIMIT_MS = 8000;

const [server, question, more = "{}"] = process.argv.slice(2);
const connection = await connect({ servers: server });
const inbox = createInbox("_INBOX.local");
const subscription = connection.subscribe(inbox, { timeout: SILENCE_LIMIT_MS });

connection.publish(
  "mlx.infer.local.chat",
  JSON.stringify({
    messages: [{ role: "user", content: question }],
    temperature: 0,
    max_tokens: 64,
    ...JSON.parse(more),
  }),
  { reply: inbox },
);

let attempt = 0;
let nextIndex = 0;
let reasoning = "";
let finishReason = null;
const calls = [];
for await (const received of subscription) {
  if (received.headers?.code === 503) {
    throw new Error("no controller takes requests");
  }
  const message = received.json();
  if (message.attempt < attempt) continue; // a stale attempt
  attempt = message.attempt;
  if (message.index !== undefined) {
    if (message.index !== nextIndex) throw new Error(`expected ${nextIndex}, got ${message.index}`);
    nextIndex += message.token_ids.length;
    reasoning += message.reasoning ?? "";
    process.stdout.write(message.text);
    finishReason = message.finish_reason ?? finishReason;
    for (const piece of message.tool_calls ?? []) join(piece);
  }
  if (message.done) {
    const answer = { finish_reason: finishReason, reasoning, tool_calls: calls };
    console.error(JSON.stringify({ usage: message.usage, error: message.error, ...answer }));
    process.exitCode = message.error ? 1 : 0;
    break;
  }
}
await connection.close();

// The first piece of a call has its id, type and name; the arguments of all are one text.
function join({ index, ...piece }) {
  const call = calls[index];
  if (call === undefined) calls[index] = piece;
  else call.function.arguments += piece.function.arguments;
}
