/** One streamed answer of /v1/chat/completions. */

import { ApiError, postJson } from "../api.js";
import { parseEvent, readEvents } from "../event_stream.js";

/**
 * @typedef {{requestId?: string, content?: string, reasoning?: string, calls?: object[], model?: string,
 *   finish?: string, usage?: {completion_tokens: number}}} Piece what one chunk adds
 */

/** @param {object} body of the request, without `stream` @throws {ApiError} also if the stream breaks off */
export async function* complete(body, signal) {
  const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await postJson("/v1/chat/completions", wanted, { signal });
  const requestId = response.headers.get("x-request-id");
  if (requestId) yield { requestId };
  let finished = false;
  try {
    for await (const event of readEvents(response)) {
      if (event.data === "[DONE]") return;
      const chunk = parseEvent(event);
      if (chunk === null) continue;
      if (chunk.error) throw new ApiError(String(chunk.error.message ?? "The answer failed."), 500, chunk.error.code);
      for (const piece of piecesOf(chunk)) {
        finished ||= piece.finish !== undefined;
        yield piece;
      }
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The stream broke off before the answer was complete.", 0);
  }
  if (!finished) throw new ApiError("The stream broke off before the answer was complete.", 0);
}

function* piecesOf(chunk) {
  if (chunk.usage) yield { usage: chunk.usage };
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (typeof content === "string" && content) yield { content, model: chunk.model };
  if (typeof reasoning === "string" && reasoning) yield { reasoning, model: chunk.model };
  if (Array.isArray(calls)) yield { calls };
  if (choice.finish_reason) yield { finish: String(choice.finish_reason) };
}
