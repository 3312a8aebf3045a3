// Streams one answer from a cluster, by docs/wire.md alone.
//
//   node stream.mjs nats://127.0.0.1:4222 "What is the capital of France?"
//
// Text goes to stdout; the end, as one line of JSON, to stderr. Exit status 1 on an error.

import { connect, createInbox } from "@nats-io/transport-node";

const SILENCE_LIMIT_MS = 8000;

const [server, question] = process.argv.slice(2);
const connection = await connect({ servers: server });
const inbox = createInbox("_INBOX.local");
const subscription = connection.subscribe(inbox, { timeout: SILENCE_LIMIT_MS });

connection.publish(
  "mlx.infer.local.chat",
  JSON.stringify({
    messages: [{ role: "user", content: question }],
    temperature: 0,
    max_tokens: 64,
  }),
  { reply: inbox },
);

let attempt = 0;
let nextIndex = 0;
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
    process.stdout.write(message.text);
  }
  if (message.done) {
    console.error(JSON.stringify({ usage: message.usage, error: message.error }));
    process.exitCode = message.error ? 1 : 0;
    break;
  }
}
await connection.close();
