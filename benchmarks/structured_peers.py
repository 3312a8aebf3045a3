"""Answers bound to schemas through the gateway beside other servers, which may ignore schemas,
refuse them, or fail.

    python -m benchmarks.structured_peers [--clients 8] [--requests 3] [--max-tokens 120]
        [--peer NAME=URL ...]

The cluster and `mlx_lm.server` are started as they come, one after another; peers run already, with
the demo model's folder. Each client sends one request after another, streamed and greedy, with a
schema of its own; a request with a schema that is not counted comes first. Last comes one with a
tool and `tool_choice: required`. Tokens are those of the answers' usage. Prints a table and writes
results/structured_peers.json.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from rich.markup import escape

from benchmarks.http_caller import CHAT
from benchmarks.measures import print_table, save
from benchmarks.servers import Start, cluster, mlx_lm_server
from benchmarks.structured import city_schema
from worker.models import demo_model

_CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Hanoi", "Quito", "Riga", "Accra")
_WARM_UP = 999
_TOOL = {
    "name": "get_weather",
    "description": "The weather of a city now.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 40},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request; `refusal` is what the server said instead."""

    text: str = ""
    tokens: int = 0
    first_s: float | None = None
    finish: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one side.

    Attributes:
        ended: answers that ended by themselves, before `max_tokens`.
        valid: answers that are JSON of their schema.
        refused: what was said instead of an answer, and how often.
        tool_call: what became of the request with a tool.
    """

    requests: int
    ended: int
    valid: int
    refused: dict[str, int]
    tokens: int
    seconds: float
    tokens_per_s: float
    ttft_p50_ms: float | None
    tool_call: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=3, help="of each client")
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", type=_peer)
    arguments = parser.parse_args()
    sides: dict[str, Start] = {"cluster": cluster, "mlx_lm.server": mlx_lm_server}
    sides |= dict(arguments.peer)
    figures: dict[str, Figures] = {}
    for side, start in sides.items():
        with start() as (url, model):
            figures[side] = asyncio.run(_figures(url, model, arguments))
        print(f"{side}: {figures[side]}", file=sys.stderr)
    _report(figures, arguments)


def _peer(text: str) -> tuple[str, Start]:
    name, _, url = text.partition("=")
    return name, lambda: contextlib.nullcontext((url, str(demo_model.folder())))


async def _figures(url: str, model: str, arguments: argparse.Namespace) -> Figures:
    async with httpx.AsyncClient(base_url=url, timeout=900) as http:
        fields = {"model": model, "max_tokens": arguments.max_tokens, "temperature": 0}
        await _ask(http, _bound(_WARM_UP, 0) | fields | {"max_tokens": 4})

        async def one_client(number: int) -> list[tuple[int, Answer]]:
            turns = range(arguments.requests)
            return [(number, await _ask(http, _bound(number, turn) | fields)) for turn in turns]

        began = time.perf_counter()
        found = await asyncio.gather(*(one_client(number) for number in range(arguments.clients)))
        seconds = time.perf_counter() - began
        pairs = [pair for of_client in found for pair in of_client]
        return _summary(pairs, seconds, await _tool_call(http, fields))


def _bound(client: int, turn: int) -> dict[str, Any]:
    """A request with the client's schema, whose keys the prompt names, too."""
    schema = city_schema(client)
    city = _CITIES[(client + 3 * turn) % len(_CITIES)]
    prompt = f"Describe the city {city} as JSON with the keys {', '.join(schema['properties'])}."
    named = {"name": f"city_{client}", "strict": True, "schema": schema}
    return {
        "messages": [{"role": "user", "content": prompt}],
        "response_format": {"type": "json_schema", "json_schema": named},
    }


async def _ask(http: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    try:
        return await _stream(http, body)
    except httpx.TransportError as error:
        return Answer(refusal=f"broke off: {error!r}")


async def _stream(http: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    text, tokens, first_s, finish = "", 0, None, None
    began = time.perf_counter()
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", CHAT, json=body | fields) as response:
        if response.is_error:
            return Answer(refusal=f"{response.status_code}: {_said(await response.aread())}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("error"):
                return Answer(refusal=f"{response.status_code}: {_said(line[6:].encode())}")
            for choice in event.get("choices", ()):
                if part := choice.get("delta", {}).get("content"):
                    text += part
                    first_s = first_s or time.perf_counter() - began
                finish = choice.get("finish_reason") or finish
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return Answer(text, tokens, first_s, finish)


async def _tool_call(http: httpx.AsyncClient, fields: dict[str, Any]) -> str:
    message = {"role": "user", "content": "What is the weather in Lisbon, in celsius?"}
    tools = [{"type": "function", "function": _TOOL}]
    body = {"messages": [message], "tools": tools, "tool_choice": "required"}
    try:
        response = await http.post(CHAT, json=body | fields)
    except httpx.TransportError as error:
        return f"broke off: {error!r}"
    if response.is_error:
        return f"refused: {response.status_code}: {_said(response.content)}"
    calls = response.json()["choices"][0]["message"].get("tool_calls") or []
    if not calls:
        return "none"
    valid = all(
        call["function"]["name"] == _TOOL["name"]
        and _is_valid(call["function"]["arguments"], _TOOL["parameters"])
        for call in calls
    )
    return "valid" if valid else "invalid"


def _said(body: bytes) -> str:
    """The sentence of an error, in whichever form."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return str(found)


def _is_valid(text: str, schema: Any) -> bool:
    try:
        return Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


# Figures.


def _summary(pairs: Sequence[tuple[int, Answer]], seconds: float, tool_call: str) -> Figures:
    """Of the answers, each with its client's number."""
    answers = [answer for _, answer in pairs]
    firsts = [answer.first_s for answer in answers if answer.first_s is not None]
    tokens = sum(answer.tokens for answer in answers)
    return Figures(
        requests=len(answers),
        ended=sum(answer.finish == "stop" for answer in answers),
        valid=sum(_is_valid(answer.text, city_schema(client)) for client, answer in pairs),
        refused=dict(collections.Counter(each.refusal for each in answers if each.refusal)),
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_s=round(tokens / seconds, 2),
        ttft_p50_ms=round(1000 * statistics.median(firsts), 1) if firsts else None,
        tool_call=tool_call,
    )


def _report(figures: dict[str, Figures], arguments: argparse.Namespace) -> None:
    rows = [
        (
            side,
            f"{of.seconds:.1f}",
            f"{of.tokens_per_s:.1f}",
            "" if of.ttft_p50_ms is None else f"{of.ttft_p50_ms:.0f}",
            *(str(count) for count in (of.requests, of.ended, of.valid)),
            escape("; ".join(f"{count} x {said}" for said, count in of.refused.items())),
            escape(of.tool_call),
        )
        for side, of in figures.items()
    ]
    print_table(
        f"{arguments.clients} clients with a schema each, at most {arguments.max_tokens} tokens",
        ("", "s", "tokens/s", "TTFT p50, ms", "requests", "ended", "valid", "refused", "tool call"),
        rows,
    )
    result = {"sides": {side: asdict(of) for side, of in figures.items()}}
    print(f"written to {save('structured_peers', result)}")


if __name__ == "__main__":
    main()
