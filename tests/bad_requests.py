"""Bad requests, each with the error that it must get."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shared.messages.request import InferenceRequest
from tests.bad_values import Path, Place, Shape
from tests.models import CONTEXT_TOKENS
from tests.worker.running_agent import ENDLESS

CHAT = "mlx.infer.local.chat"
_SHAPED = ("prompt", "content", "stop", "input", "query", "tool_choice")
_TEXT_PART = {"type": "text", "text": "x"}
_UNKNOWN_TOKEN = 99_999


@dataclass(frozen=True, slots=True)
class BadRequest:
    """One request.

    Attributes:
        name: short, for the test's id.
        body: the fields beside a prompt and max_tokens, or the bytes as they are.
        words: stand in the error's message.
        accepted: a worker finds the fault, after a controller accepted the request.
    """

    name: str
    body: dict[str, Any] | bytes
    code: str = "invalid_request"
    param: str | None = None
    words: str = ""
    subject: str = CHAT
    accepted: bool = False

    @property
    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        body = {"prompt": "x", "max_tokens": 1, **self.body}
        return json.dumps(
            {name: value for name, value in body.items() if value is not _ABSENT}
        ).encode()

    def but(self, name: str, **fields: Any) -> "BadRequest":
        """The same with more fields."""
        assert isinstance(self.body, dict)
        return replace(self, name=f"{name}: {self.name}", body={**self.body, **fields})


_ABSENT = object()


def _chat(*messages: Any) -> dict[str, Any]:
    return {"prompt": _ABSENT, "messages": list(messages)}


def _user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


UNREADABLE = [
    BadRequest("empty", b"", words="Invalid JSON"),
    BadRequest("no JSON", b"What is the capital of France?", words="Invalid JSON"),
    BadRequest("half an object", b'{"prompt": "x"', words="Invalid JSON"),
    BadRequest("more after the object", b'{"prompt": "x"} {}', words="trailing characters"),
    BadRequest("a list", b'["x"]', words="should be an object"),
    BadRequest("a string", b'"x"', words="should be an object"),
    BadRequest("a number", b"5", words="should be an object"),
    BadRequest("null", b"null", words="should be an object"),
    BadRequest("invalid UTF-8", b'{"prompt": "\xff"}', words="invalid unicode"),
    BadRequest("UTF-16", '{"prompt": "x"}'.encode("utf-16"), words="Invalid JSON"),
    BadRequest("half a surrogate pair", b'{"prompt": "\\ud800 x"}', words="Invalid JSON"),
    BadRequest("the other half", b'{"prompt": "\\udc00"}', words="surrogate"),
    BadRequest("a raw line end in a string", b'{"prompt": "a\nb"}', words="control character"),
    BadRequest("an infinite number", b'{"prompt": "x", "top_p": 1e999}', param="top_p"),
    BadRequest("5,000 digits", b'{"prompt": "x", "seed": %s}' % (b"9" * 5000), words="range"),
    BadRequest("400 digits", b'{"prompt": "x", "seed": %s}' % (b"9" * 400), param="seed"),
    BadRequest(
        "5,000 deep",
        b'{"prompt": %s%s}' % (b"[" * 5000, b"]" * 5000),
        words="deeper than 32 levels",
    ),
    BadRequest(
        "5,000 deep in a tool",
        b'{"prompt": "x", "tools": [%s1%s]}' % (b'{"a":' * 5000, b"}" * 5000),
        words="deeper than 32 levels",
    ),
    BadRequest("200,000 deep", b"[" * 200_000, words="200000 objects and lists"),
    BadRequest("200,000 objects deep", b'{"a":' * 200_000, words="200000 strings"),
    BadRequest(
        "3 MB",
        b'{"prompt": "%s"}' % (b"x" * 3_000_000),
        "payload_too_large",
        words="3000014 bytes; at most 2097152",
    ),
]

_CALL = b'{"function":{"name":"x"}}'
_CALLS = b'{"role":"assistant","tool_calls":[%s]}' % b",".join([_CALL] * 4000)
BEYOND_BOUNDS = [
    *(
        BadRequest(
            f"{what} in a template's variable",
            b'{"prompt": "x", "chat_template_kwargs": {"a": [{"b": %s}]}}' % value,
            param="chat_template_kwargs.a.0.b",
            words=words,
        )
        for what, value, words in (
            ("30 digits", b"9" * 30, "at most 64 bits"),
            ("2**63", b"%d" % 2**63, "at most 64 bits"),
            ("an infinite number", b"1e400", "finite"),
            ("NaN", b"NaN", "finite"),
        )
    ),
    BadRequest(
        "5,000 digits in a template's variable",
        b'{"prompt": "x", "chat_template_kwargs": {"a": %s}}' % (b"9" * 5000),
        words="out of range",
    ),
    *(
        BadRequest(
            f"{levels} levels in {field}",
            b'{"prompt": "x", "%s": %s%s%s}'
            % (field.encode(), before, b'{"a":' * levels + b"1" + b"}" * levels, after),
            param=field,
            words="deeper than 32 levels",
        )
        for levels in (33, 64, 150, 200, 1000)
        for field, before, after in (
            ("chat_template_kwargs", b'{"x":', b"}"),
            ("tools", b'[{"type":"function","function":{"name":"f","parameters":', b"}}]"),
            ("response_format", b'{"type":"json_schema","json_schema":{"schema":', b"}}"),
            ("unknown", b"", b""),
        )
    ),
    BadRequest(
        "32,000 calls",
        b'{"messages": [%s]}' % b",".join([_CALLS] * 8),
        words="objects and lists; at most 16384",
    ),
    BadRequest(
        "9,000 messages",
        b'{"messages": [%s]}' % b",".join([b'{"role":"user","content":""}'] * 9000),
        words="9000 messages, parts, calls and tools in total; at most 8192",
    ),
    BadRequest(
        "300,000 token ids",
        b'{"prompt": [%s]}' % b",".join([b"5"] * 300_000),
        words="values; at most 262144",
    ),
    BadRequest(
        "4,097 biases",
        {"logit_bias": {str(number): 1 for number in range(4097)}},
        words="4097 keys; at most 4096",
    ),
    BadRequest("65 labels", {"requires": {"labels": {str(n): "x" for n in range(65)}}},
               param="requires.labels"),
    BadRequest("a long label", {"requires": {"labels": {"a": "x" * 257}}},
               param="requires.labels.a"),
    BadRequest("a long chip", {"requires": {"chip": "x" * 257}}, param="requires.chip"),
    BadRequest("a long name", _chat(_user("x", name="x" * 1025)), param="messages.0.name"),
    BadRequest(
        "a long id of a call",
        _chat({"role": "tool", "content": "x", "tool_call_id": "x" * 257}),
        param="messages.0.tool_call_id",
    ),
]  # fmt: skip

DUPLICATES = [
    BadRequest("a key twice", b'{"prompt": "x", "max_tokens": 1, "prompt": "y"}', param="prompt"),
    BadRequest(
        "a key twice with one value",
        b'{"prompt": "x", "max_tokens": 1, "max_tokens": 1}',
        param="max_tokens",
    ),
    BadRequest(
        "a key twice in a message",
        b'{"max_tokens": 1, "messages": [{"role": "user", "content": "x", "role": "system"}]}',
        param="role",
    ),
]

BAD_NAMES = [
    *(
        BadRequest(f"client {name[:8]}", {}, words="the client", subject=f"mlx.infer.{name}.chat")
        for name in ("a$a", "x" * 65, "clïent", "a,b", "!")
    ),
    *(
        BadRequest(f"skill {name[:8]}", {}, words="the skill", subject=f"mlx.infer.local.{name}")
        for name in ("ch@t", "x" * 65, "chät")
    ),
    BadRequest(
        "unknown skill",
        {},
        "unknown_skill",
        words="no skill 'cooking'; there are: chat",
        subject="mlx.infer.local.cooking",
    ),
]

BAD_FIELDS = [
    BadRequest("unknown field", {"temprature": 1}, param="temprature", words="unknown field"),
    BadRequest(
        "unknown field of a text",
        _chat(_user([{**_TEXT_PART, "x": 1}])),
        param="messages.0.content",
    ),
    BadRequest("unknown model", {"model": "gpt-9"}, "unknown_model", "model", "it has: tiny"),
    BadRequest(
        "a picture", _chat(_user([{"type": "image_url", "text": ""}])), param="messages.0.content"
    ),
    BadRequest("an empty prompt among others", {"prompt": ["x", ""]}, param="prompt"),
    BadRequest("texts and ids", {"prompt": ["x", [1]]}, param="prompt"),
    BadRequest("a long stop string", {"stop": "a" * 257}, param="stop", words="256"),
    BadRequest("too many stop tokens", {"stop_token_ids": [1] * 65}, param="stop_token_ids"),
    BadRequest("a word in logit_bias", {"logit_bias": {"hello": 1}}, param="logit_bias.hello"),
    BadRequest("a negative token", {"logit_bias": {"-1": 1}}, param="logit_bias.-1"),
    *(
        BadRequest(f"{field} of {what}", {field: value}, param=field)
        for field in ("request_id", "session_id")
        for what, value in {
            "no characters": "",
            "129 characters": "x" * 129,
            "two words": "two words",
            "blanks": " ",
            "a line end": "x\n",
            "other letters": "é",
            "a zero": "a\0",
        }.items()
    ),
    BadRequest(
        "a tool without its function", {"tools": [{"type": "function"}]}, param="tools.0.function"
    ),
]

FOUND_LATER = [
    replace(row, accepted=True)
    for row in [
        BadRequest(
            "a long prompt",
            {"prompt": "x" * CONTEXT_TOKENS},
            "context_length_exceeded",
            "prompt",
            f"{CONTEXT_TOKENS} tokens fill the model's context",
        ),
        BadRequest(
            "a long prompt of ids",
            {"prompt": [5] * 100_000},
            "context_length_exceeded",
            "prompt",
            "100000 tokens fill the model's context",
        ),
        BadRequest(
            "a long conversation",
            _chat(*[_user("x" * 100)] * 20),
            "context_length_exceeded",
            "messages",
            "tokens fill the model's context",
        ),
        BadRequest(
            "an unknown token", {"prompt": [5, _UNKNOWN_TOKEN]}, param="prompt", words="99999"
        ),
        BadRequest(
            "an unknown token in a list",
            {"prompt": [[5], [_UNKNOWN_TOKEN]]},
            param="prompt",
            words="99999",
        ),
        BadRequest(
            "an unknown stop token", {"stop_token_ids": [_UNKNOWN_TOKEN]}, param="stop_token_ids"
        ),
        BadRequest("a bias for an unknown token", {"logit_bias": {"99999": 1}}, param="logit_bias"),
        BadRequest(
            "resuming unknown tokens",
            {"resume": {"token_ids": [_UNKNOWN_TOKEN]}},
            param="resume.token_ids",
        ),
        BadRequest(
            "no time",
            {"timeout_ms": 1, "max_tokens": 1000, "logit_bias": ENDLESS},
            "deadline_exceeded",
            words="timeout_ms of 1 passed",
        ),
        BadRequest(
            "more memory than there is",
            {"requires": {"min_memory_gb": 1e300}},
            "requirements_unmet",
            words="GB of memory",
        ),
        BadRequest(
            "a label nobody has",
            {"requires": {"labels": {"room": "none"}}},
            "requirements_unmet",
        ),
    ]
]

NAMED = [
    BadRequest("with an id", {"request_id": "mine", "temperature": 9}, param="temperature"),
    BadRequest("with an id and NaN", {"request_id": "mine", "min_p": float("nan")}, param="min_p"),
    BadRequest(
        "with an id, too late",
        {"request_id": "mine", "prompt": [99_999]},
        param="prompt",
        accepted=True,
    ),
]

TAKEN_TODAY = [
    BadRequest("an Arabic digit", {"logit_bias": {"٣": 1}}, param="logit_bias.٣"),
    BadRequest(
        "resuming more than the context",
        {"resume": {"token_ids": [5] * (2 * CONTEXT_TOKENS)}},
        "context_length_exceeded",
        "resume.token_ids",
        accepted=True,
    ),
    BadRequest(
        "more text sent than there was",
        {"resume": {"token_ids": [5], "text_sent": 1000}},
        param="resume.text_sent",
        accepted=True,
    ),
]
"""Refused by nobody yet."""


def of_wrong_types() -> Iterator[BadRequest]:
    """Every field, and every field and item inside, with every wrong type and number."""
    shape = Shape(InferenceRequest)
    for place in shape.places():
        for what, value in place.wrong_values().items():
            yield _with(shape, place, what, value)


def _with(shape: Shape, place: Place, what: str, value: Any) -> BadRequest:
    body = shape.with_value(place.path, value)
    if place.path[0] in ("messages", "input"):
        body["prompt"] = _ABSENT
    name = f"{_dotted(place.path)} {what}"
    return BadRequest(name, body, param=_param(place.path), words=f"{_param(place.path)}: ")


def _param(path: Path) -> str:
    """What an error names: a field of several shapes is not followed further."""
    for position, part in enumerate(path):
        if part in _SHAPED:
            return _dotted(path[: position + 1])
    return _dotted(path)


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))
