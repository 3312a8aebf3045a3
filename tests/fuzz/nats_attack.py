"""Lines of NATS's protocol near those that a client's program sends."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from shared.access.roles import permissions
from shared.subjects import SUBJECTS
from tests.fuzz.mutation import json_payload, some_bytes, token

_QUERY = {"request_id": "r-1"}
BODIES: list[Any] = [
    {"prompt": "salt", "max_tokens": 2, "request_id": "r-1"},
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "session_id": "s-1"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2,
     "chat_template_kwargs": {"x": 1}, "stream": False},
    {"prompt": ["a", "b"], "n": 2, "max_tokens": 2, "logit_bias": {"5": 1.5}, "stop": ["x"]},
    {"prompt": [1, 2], "max_tokens": 2, "resume": {"token_ids": [1], "text_sent": 1}},
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "tool_choice": "auto",
     "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {"prompt": "x", "max_tokens": 2, "response_format": {"type": "json_object"}, "timeout_ms": 50},
    {"input": ["x"], "requires": {"labels": {"a": "b"}}, "multiplex": True},
    _QUERY,
    {**_QUERY, "from_index": 0, "choice": 0},
]  # fmt: skip
"""Of a client; answers are short, so that an attack costs by its bytes, not by its tokens."""


@dataclass(frozen=True, slots=True)
class Scenery:
    """What exists: names for the subjects.

    Attributes:
        client: the attacker.
        internal: payloads that processes of this cluster sent each other, as JSON.
        restricted: whether only subjects of a client are worth a try, because the server would
            permit it the others, too.
    """

    client: str
    controllers: Sequence[str]
    workers: Sequence[str]
    boots: Sequence[str]
    internal: Sequence[Any]
    restricted: bool


class NatsAttack:
    """Draws what one connection sends."""

    def __init__(self, random: Random, scenery: Scenery) -> None:
        self._random = random
        self._scenery = scenery
        mine = permissions("client", scenery.client).publish
        self._own = [pattern for pattern in mine if pattern.startswith("mlx.")]
        self._all = [each.pattern for each in SUBJECTS if each.pattern != "<inbox>"]

    def line(self) -> bytes:
        """One operation, usually a publication."""
        random = self._random
        match random.randrange(40):
            case 0:
                return b"SUB " + self._subject() + b" %d\r\n" % random.randrange(100)
            case 1:
                return b"UNSUB %d\r\n" % random.randrange(100)
            case 2:
                return random.choice((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n"))
            case 3:
                return some_bytes(random, b'CONNECT {"verbose":false,"headers":true}\r\n')
            case 4:
                return random.randbytes(random.randrange(1, 80)) + b"\r\n"
            case 5 | 6 | 7 | 8:
                return self._with_headers()
            case _:
                return self._plain()

    def _plain(self) -> bytes:
        payload = self._payload()
        size = len(payload)
        if self._random.random() < 0.005:
            size += self._random.randint(-3, 3)
        parts = (b"PUB", self._subject(), self._reply(), b"%d" % max(0, size))
        return b" ".join(part for part in parts if part) + b"\r\n" + payload + b"\r\n"

    def _with_headers(self) -> bytes:
        random, payload = self._random, self._payload()
        trace = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
        valid = random.choice((
            b"NATS/1.0\r\n" + trace + b"\r\n",
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/1.0 100 Idle\r\n\r\n",
            b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
            b"NATS/1.0\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        ))  # fmt: skip
        headers = some_bytes(random, valid)
        sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
        parts = (b"HPUB", self._subject(), self._reply(), sizes)
        return b" ".join(part for part in parts if part) + b"\r\n" + headers + payload + b"\r\n"

    def _subject(self) -> bytes:
        random, scenery = self._random, self._scenery
        others = not scenery.restricted and random.random() < 0.2
        pattern = random.choice(self._all if others else self._own)
        names = {
            "<client>": scenery.client,
            "<skill>": "chat",
            "<worker>": random.choice(scenery.workers),
            "<controller>": random.choice(scenery.controllers),
            "<boot>": random.choice(scenery.boots),
            "<verb>": random.choice(("cancel", "status", "drain", "claim", "load", "apply")),
            "<kind>": "worker",
            "<number>": "1",
        }
        tokens = [self._token(each, names) for each in pattern.split(".")]
        if random.random() < 0.4:
            place = random.randrange(1 if others else 3, len(tokens)) if len(tokens) > 3 else -1
            tokens[place] = token(random, tokens[place])
        return b".".join(tokens)

    def _token(self, part: str, names: dict[str, str]) -> bytes:
        if part in ("*", ">"):
            skills = ("chat", "cancel", "status", "controller", "cluster", "nobody")
            return self._random.choice(skills).encode()
        return names.get(part, part).encode()

    def _reply(self) -> bytes:
        random = self._random
        own = f"_INBOX.{self._scenery.client}.".encode()
        match random.randrange(8):
            case 0:
                return b""
            case 1:
                return own + token(random, b"x")
            case 2:
                return own + b"x" * random.choice((100, 255, 1000, 3900))
            case 3:
                return random.choice((
                    b"_INBOX.ada.x", b"mlx.worker.worker-1.control.drain", b"_MLX.worker.w.x",
                    b"$JS.API.INFO", b"_INBOX", own[:-1],
                ))  # fmt: skip
            case _:
                return own + b"inbox.%d" % random.randrange(20)

    def _payload(self) -> bytes:
        random = self._random
        if self._scenery.internal and random.random() < 0.25:
            return json_payload(random, [random.choice(self._scenery.internal)])
        return json_payload(random, BODIES)


def internal_json(payload: bytes) -> Any:
    """A payload of the cluster's own traffic as JSON, or None."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None
