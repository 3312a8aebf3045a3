"""A bare HTTP server, the limit that the gateway is measured against: the same uvicorn, and of what
the gateway says the same bytes, made beforehand.

    python -m benchmarks.bare_http [--steps-per-s 20]

`POST /v1/chat/completions` with `stream` sends one chunk a step to every caller, `max_tokens` of
them; without, an answer at once.
"""

import argparse
import asyncio
import json
import socket

import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.pace import steps
from benchmarks.simulated_workers import MODEL, PROMPT_TOKENS, WORD
from controller.gateway.openai.chat_answers import ChatCompletionSerializer
from shared.client import Completion
from shared.ids import new_request_id
from shared.messages.stream import ChoiceOutput, Timings, Usage

_REQUEST = new_request_id()
_FORM = ChatCompletionSerializer(_REQUEST, MODEL, choices=1, include_usage=False)
_OPENING = _FORM.opening(None)
_TOKEN = _FORM.events([ChoiceOutput(0, 0, [0], WORD)])
_LAST = _FORM.events([ChoiceOutput(0, 0, [0], WORD, finish_reason="length")])


async def _whole(tokens: int) -> bytes:
    output = ChoiceOutput(0, 0, list(range(tokens)), WORD * tokens, finish_reason="length")
    usage = Usage(PROMPT_TOKENS, 0, tokens)
    return orjson.dumps(
        await _FORM.whole(Completion(_REQUEST, None, (output,), usage, Timings(0, 0, 0, 0)))
    )


class BareServer:
    """The ASGI app."""

    def __init__(self, steps_per_s: float) -> None:
        self._steps_per_s = steps_per_s
        self._waiting: set[asyncio.Event] = set()
        self._clock: asyncio.Task[None] | None = None
        self._known: dict[int, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        asked = orjson.loads(await _body(receive))
        if asked.get("stream"):
            await self._stream(send, asked["max_tokens"])
        else:
            tokens = asked["max_tokens"]
            if tokens not in self._known:
                self._known[tokens] = await _whole(tokens)
            await _answer(send, self._known[tokens])

    async def _stream(self, send: Send, tokens: int) -> None:
        if self._clock is None:
            self._clock = asyncio.create_task(self._make_steps())
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        step = asyncio.Event()
        self._waiting.add(step)
        for index in range(tokens):
            await step.wait()
            step.clear()
            data = (_OPENING if index == 0 else b"") + (_LAST if index + 1 == tokens else _TOKEN)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self._waiting.remove(step)
        closing = await _FORM.closing(Usage(PROMPT_TOKENS, 0, tokens))
        await send({"type": "http.response.body", "body": closing})

    async def _make_steps(self) -> None:
        async for _ in steps(self._steps_per_s):
            for step in self._waiting:
                step.set()


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps-per-s", type=float, default=20)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listening.getsockname()[1]
    app = BareServer(parser.parse_args().steps_per_s)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    print(json.dumps({"http_url": f"http://127.0.0.1:{port}"}), flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
