"""HTTP requests near those that programs send to the gateway."""

import gzip
import json
from random import Random
from typing import Any

from tests.fuzz.mutation import HOSTILE_PIECES, json_payload, some_bytes

_MESSAGES = [{"role": "user", "content": "x"}]
BODIES: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        {"model": "chat", "messages": _MESSAGES, "max_tokens": 2},
        {"model": "chat", "messages": _MESSAGES, "max_tokens": 2, "stream": True, "n": 2,
         "stream_options": {"include_usage": True}, "tools": [
             {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    ],
    "/v1/completions": [{"model": "chat", "prompt": "x", "max_tokens": 2, "logprobs": 1}],
    "/v1/responses": [
        {"model": "chat", "input": "x", "max_output_tokens": 2},
        {"model": "chat", "input": [{"role": "user", "content": "x"}], "max_output_tokens": 2,
         "previous_response_id": "resp_1", "stream": True},
    ],
    "/v1/messages": [
        {"model": "chat", "messages": _MESSAGES, "max_tokens": 2, "system": "x"},
        {"model": "chat", "messages": _MESSAGES, "max_tokens": 2, "stream": True},
    ],
    "/v1/messages/count_tokens": [{"model": "chat", "messages": _MESSAGES}],
    "/v1/embeddings": [{"model": "chat", "input": ["x", "y"], "encoding_format": "base64"}],
    "/v1/rerank": [{"model": "chat", "query": "x", "documents": ["x"]}],
    "/v2/rerank": [{"model": "chat", "query": "x", "documents": ["x"], "top_n": 1}],
    "/v1/score": [{"model": "chat", "text_1": "x", "text_2": ["y"]}],
    "/cluster/orders": [{"order": "cancel", "client": "local", "request_id": "r-1"}],
}  # fmt: skip
"""Valid ones by path; answers are short."""
_GETS = (
    "/v1/models", "/v1/models/chat", "/v1/responses/resp_1", "/v1/responses/resp_1/input_items",
    "/metrics", "/openapi.json", "/cluster/events", "/", "/ui", "/ui/../../etc/passwd", "/health",
    "/ready", "/v1/nothing",
)  # fmt: skip


class HttpAttack:
    """Draws what one connection sends.

    Args:
        key: of the attacker; None if the gateway asks for none.
    """

    def __init__(self, random: Random, key: str | None) -> None:
        self._random = random
        self._key = key

    def connection(self) -> list[bytes]:
        """The pieces of one to four requests, sent one after another."""
        random, pieces = self._random, []
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            request = self._request()
            if random.random() < 0.1:
                cut = random.randrange(len(request) + 1)
                pieces += [request[:cut], request[cut:]]
            elif random.random() < 0.1:
                pieces.append(request[: random.randrange(len(request) + 1)])  # never whole
                break
            else:
                pieces.append(request)
        return pieces

    def _request(self) -> bytes:
        random = self._random
        if random.random() < 0.2:
            path, body = random.choice(_GETS), b""
            method = random.choice(("GET", "HEAD", "DELETE", "OPTIONS", "PUT"))
        else:
            path = random.choice(list(BODIES))
            method, body = "POST", json_payload(random, BODIES[path])
        target = path.encode()
        if random.random() < 0.1:
            place = random.randrange(1, len(target) + 1)
            target = target[:place] + random.choice((*HOSTILE_PIECES, b"//", b"?" + b"x=1&" * 999))
        line = f"{method} ".encode() + target + random.choice((b" HTTP/1.1", b" HTTP/1.0"))
        headers = [b"Host: 127.0.0.1", b"Content-Type: application/json"]
        if self._key is not None and random.random() < 0.95:
            headers.append(f"Authorization: Bearer {self._key}".encode())
        body, more = self._framed(body)
        headers += more
        if random.random() < 0.1:
            headers.append(random.choice((
                b"X-Request-Id: x\x1b[2J", b"Connection: Upgrade\r\nUpgrade: websocket",
                b"Expect: 100-continue", b"Origin: http://evil.example", b"Host: evil.example",
                b"X: " + b"x" * 70_000, b"\xff: \xff", b" folded", b"Connection: close",
                b"traceparent: \xff", b"Accept: \x00",
            )))  # fmt: skip
        head = b"\r\n".join([line, *(some_bytes(random, each) for each in headers)])
        return head + b"\r\n\r\n" + body

    def _framed(self, body: bytes) -> tuple[bytes, list[bytes]]:
        """A body and the headers that announce it, mostly truly."""
        random = self._random
        match random.randrange(20):
            case 0:
                size = random.choice((0, len(body) - 1, len(body) + 1, 10**30, -1))
                return body, [b"Content-Length: %d" % size]
            case 1 | 2:
                step = random.choice((1, 7, 1000))
                parts = [
                    body[start : start + step] for start in range(0, min(len(body), 5000), step)
                ]
                chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                end = random.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"zz\r\n", b"-1\r\n\r\n", b""))
                return chunks + end, [b"Transfer-Encoding: chunked"]
            case 3:
                packed = gzip.compress(body if random.random() < 0.7 else b"[" * 10_000_000)
                packed = some_bytes(random, packed)
                return packed, [b"Content-Encoding: gzip", b"Content-Length: %d" % len(packed)]
            case 4:
                both = [b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(body)]
                return body, both
            case _:
                return body, [b"Content-Length: %d" % len(body)]


def ask(key: str | None) -> bytes:
    """A small valid request, as another client sends it."""
    body = json.dumps({"model": "chat", "messages": _MESSAGES, "max_tokens": 1}).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key is not None else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\n{authorization}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
