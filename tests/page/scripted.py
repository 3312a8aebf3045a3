"""A gateway that says what a test scripts: the page's files, the stream of events, a chat.

The real one is in `test_page.py`; this one can also say what no real one says.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.page import rows

STATIC = Path(__file__).parents[2] / "controller" / "gateway" / "page" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_REFUSED_VIEW = "this key may not see that"
Step = dict[str, Any] | float | str
"""Of an answer: a delta, a pause in seconds, or `broken`, after which the stream just ends."""


class ScriptedGateway:
    """Serves until it is left.

    Attributes:
        views: what each view begins with, for every stream.
        key: which key is required; None requires none.
        answer: the steps of each answer; `finish` and the usage follow.
        orders: those that were given.
        asked: the bodies of the chat.
        connections: the views of each stream that was opened.
    """

    def __init__(self, views: dict[str, rows.Row] | None = None) -> None:
        self.views = views or rows.plausible()
        self.key: str | None = None
        self.refuses = False
        self.answer: list[Step] = [{"content": "Hello."}]
        self.orders: list[Any] = []
        self.asked: list[Any] = []
        self.connections: list[list[str]] = []
        self._streams: set[tuple[frozenset[str], asyncio.Queue[bytes | None]]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/ui", self._page),
                Route("/ui/{path:path}", self._file),
                Route("/cluster/events", self._events),
                Route("/cluster/orders", self._order, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(20)
        self._socket.close()

    def push(self, view: str, data: rows.Row) -> None:
        """Say it to every stream that has the view."""
        self.push_line(view, json.dumps(data))

    def push_line(self, view: str, line: str) -> None:
        self._say(view, f"event: {view}\ndata: {line}\n\n".encode())

    def drop(self) -> None:
        """End every stream."""
        self._say(None, None)

    def _say(self, view: str | None, data: bytes | None) -> None:
        def say() -> None:
            for views, queue in self._streams:
                if view is None or view in views:
                    queue.put_nowait(data)

        self._loop.call_soon_threadsafe(say)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        self._loop.close()

    async def _page(self, request: Request) -> Response:
        return _file("index.html")

    async def _file(self, request: Request) -> Response:
        return _file(request.path_params["path"])

    def _problem(self, request: Request) -> Response | None:
        if self.refuses:
            return _error(503, "the gateway is shutting down")
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "this key is not known")
        return None

    async def _events(self, request: Request) -> Response:
        views = request.query_params.get("views", "").split(",")
        self.connections.append(views)
        if problem := self._problem(request):
            return problem
        session = self.views["session"]
        if not set(views) <= {*session["views"]}:
            return _error(403, _REFUSED_VIEW)
        return StreamingResponse(self._stream(views), media_type="text/event-stream")

    async def _stream(self, views: list[str]) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        mine = (frozenset(views), queue)
        for view in ("session", *views):
            yield f"event: {view}\ndata: {json.dumps(self.views[view])}\n\n".encode()
        self._streams.add(mine)
        try:
            while (data := await queue.get()) is not None:
                yield data
        finally:
            self._streams.discard(mine)

    async def _order(self, request: Request) -> Response:
        if problem := self._problem(request):
            return problem
        if self.views["session"]["rights"] != "admin":
            return _error(403, "this key may not give orders")
        self.orders.append(order := await request.json())
        return _json({"ok": True, "message": f"The order {order['order']} was given."})

    async def _models(self, request: Request) -> Response:
        if problem := self._problem(request):
            return problem
        fields = ("id", "skills", "abilities")
        listed = [{name: row[name] for name in fields} for row in self.views["models"]["rows"]]
        listed.append({"id": "chat", "skills": ["chat"], "abilities": ["tools"]})
        return _json({"object": "list", "data": listed})

    async def _chat(self, request: Request) -> Response:
        if problem := self._problem(request):
            return problem
        self.asked.append(await request.json())
        headers = {"x-request-id": f"req-chat-{len(self.asked)}"}
        return StreamingResponse(self._chunks(), media_type="text/event-stream", headers=headers)

    async def _chunks(self) -> AsyncIterator[bytes]:
        row = rows.request(0, key="chat", id=f"req-chat-{len(self.asked)}", worker="studio-0")
        self._tell(row)
        tokens = 0
        for step in self.answer:
            match step:
                case float():
                    await asyncio.sleep(step)
                case "broken":
                    return
                case {"moved_to": worker}:
                    moved = {"moved_from": row["worker"], "worker": worker, "migrations": 1}
                    self._tell(row | moved)
                case {"error": _}:
                    yield _event(step)
                    return
                case _:
                    tokens += 1
                    yield _event(_chunk({"index": 0, "delta": step, "finish_reason": None}))
        yield _event(_chunk({"index": 0, "delta": {}, "finish_reason": "stop"}))
        yield _event({"choices": [], "usage": {"completion_tokens": tokens * 2}})
        yield b"data: [DONE]\n\n"

    def _tell(self, row: rows.Row) -> None:
        data = {"whole": False, "rows": [row], "removed": [], "total": 1, "states": {}}
        self.views["requests"]["rows"] = [row]
        self.push("requests", data)


def _chunk(choice: rows.Row) -> rows.Row:
    return {"id": "chatcmpl-1", "model": "mlx-community/Qwen3-4B-4bit", "choices": [choice]}


def _event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _file(path: str) -> Response:
    file = STATIC / path
    if STATIC not in file.resolve().parents or not file.is_file():
        return _error(404, "there is no such file")
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
    kind = _TYPES.get(file.suffix, "image/svg+xml")
    return Response(file.read_bytes(), media_type=kind, headers=headers)


def _json(body: Any, status: int = 200) -> Response:
    """In ASCII: half a character has no UTF-8."""
    return Response(json.dumps(body), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": {"message": message, "code": "not_allowed"}}, status)
