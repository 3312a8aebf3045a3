"""Default settings through the gateway beside mlx_lm.server: what a person meets who tunes nothing.

    python -m benchmarks.as_it_comes [--clients 1,8,32] [--repeats 3] [--requests 3]

`cluster up --http-port` as it comes, in a folder of its own, and `mlx_lm.server` with its defaults
and with `--prompt-concurrency 1`: the same machine, BLAS, model and HTTP client, one after another,
started anew for each repeat. Three loads, greedy:

- closed loop: each client sends one request after another, prompts of 50 to 400 tokens that share
  nothing, 48 tokens of answer;
- prefix: eight requests at once that begin with the same 350 tokens, which nobody has seen before
  (cold), and eight others that begin with them too (warm);
- turns: conversations of four turns, each of which sends all before it again, one and four at once.

Ratios are to the better of the two servers, figure by figure. Writes results/as_it_comes.json.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.loads import mixed_prompts, tokenizer
from benchmarks.measures import Run, StreamClock, print_table, save, shown, spread
from benchmarks.servers import Start, cluster, mlx_lm_server

_SHORTEST, _LONGEST = 50, 400
_STAGGER_S = 0.1
_FEWEST_REQUESTS = 8
_SHARED_TOKENS, _SHARERS, _OWN_TOKENS, _SHARER_ANSWER = 350, 8, 20, 16
_TURNS, _TURN_TOKENS, _TURN_ANSWER = 4, 60, 32
_OURS = "cluster"
_HIGHER_IS_BETTER = {"tokens_per_s"}

Figures = dict[str, dict[str, float]]
"""Of one repeat of one side: by load, then by the name of the figure."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request; seconds since it was sent."""

    text: str
    tokens: int
    first_s: float
    whole_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="1,8,32", help="of the closed loop; empty for none")
    parser.add_argument("--requests", type=int, default=3, help="of each, 8 in all at least")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer to them")
    parser.add_argument("--sharers", type=int, default=_SHARERS, help="of a prefix; 0 for none")
    parser.add_argument("--conversations", default="1,4", help="at once; empty for none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", default="", help="only those whose name has this; ours always")
    arguments = parser.parse_args()
    servers: dict[str, Start] = {
        "mlx_lm.server": mlx_lm_server,
        "mlx_lm.server, 1 prompt": functools.partial(mlx_lm_server, ["--prompt-concurrency", "1"]),
    }
    sides = {_OURS: cluster, **{n: s for n, s in servers.items() if arguments.sides in n}}
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    for repeat in range(arguments.repeats):
        for side in _in_turn(list(sides), repeat):
            print(f"repeat {repeat + 1}/{arguments.repeats}: {side}", file=sys.stderr)
            with sides[side]() as (url, model):
                runs[side].append(asyncio.run(_figures(url, model, repeat, arguments)))
            for load, found in runs[side][-1].items():
                said = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
                print(f"  {load}: {said}", file=sys.stderr)
    _report(runs, arguments.repeats)


def _in_turn(sides: Sequence[str], repeat: int) -> Sequence[str]:
    """Another one begins each time, so that no side always has the machine's best minute."""
    first = repeat % len(sides)
    return [*sides[first:], *sides[:first]]


# Loads.


class Caller:
    """A client of one side."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, url: str, model: str) -> AsyncIterator["Caller"]:
        limits = httpx.Limits(max_connections=256)
        async with httpx.AsyncClient(base_url=url, timeout=900, limits=limits) as http:
            yield cls(http, model)

    async def complete(self, text: str, max_tokens: int, clock: StreamClock) -> Answer:
        return await self._stream("/v1/completions", {"prompt": text}, max_tokens, clock)

    async def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, clock: StreamClock
    ) -> Answer:
        body = {"messages": list(messages)}
        return await self._stream("/v1/chat/completions", body, max_tokens, clock)

    async def _stream(
        self, path: str, body: Mapping[str, Any], max_tokens: int, clock: StreamClock
    ) -> Answer:
        fields = {"model": self._model, "max_tokens": max_tokens, "temperature": 0.0}
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        text, tokens, first_s = "", 0, 0.0
        began = time.perf_counter()
        async with self._http.stream("POST", path, json={**body, **fields}) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", ()):
                    if part := choice.get("text") or choice.get("delta", {}).get("content"):
                        clock.tick()
                        text += part
                        first_s = first_s or time.perf_counter() - began
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        return Answer(text, tokens, first_s, time.perf_counter() - began)


async def _figures(url: str, model: str, seed: int, arguments: argparse.Namespace) -> Figures:
    figures: Figures = {}
    async with Caller.connect(url, model) as caller:
        await caller.complete("Hello", 4, StreamClock(Run()))
        for count in _numbers(arguments.clients):
            requests = max(_FEWEST_REQUESTS, count * arguments.requests)
            prompts = mixed_prompts(requests, _SHORTEST, _LONGEST, seed)
            loop = _closed_loop(
                caller, [_text(ids) for ids in prompts], count, arguments.max_tokens
            )
            figures[f"{count} in a closed loop"] = await loop
        if arguments.sharers:
            system = _text(mixed_prompts(1, _SHARED_TOKENS, _SHARED_TOKENS, 1000 + seed)[0])
            for state in ("cold", "warm"):
                load = f"{arguments.sharers} share a prefix, {state}"
                figures[load] = await _sharing(caller, system, arguments.sharers, state)
        for count in _numbers(arguments.conversations):
            figures[f"{count} conversations"] = await _conversations(caller, count, seed)
    return figures


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


async def _closed_loop(
    caller: Caller, prompts: list[str], count: int, max_tokens: int
) -> dict[str, float]:
    run, tokens = Run(), 0

    async def one_client(number: int) -> None:
        nonlocal tokens
        await asyncio.sleep(_STAGGER_S * number)
        while prompts:
            answer = await caller.complete(prompts.pop(), max_tokens, StreamClock(run))
            tokens += answer.tokens

    began = time.perf_counter()
    await asyncio.gather(*(one_client(number) for number in range(count)))
    seconds = time.perf_counter() - began
    return {
        "tokens_per_s": tokens / seconds,
        "ttft_p50_ms": 1000 * statistics.median(run.first_token_s),
        "longest_gap_ms": 1000 * max(run.gaps_s),
    }


async def _sharing(caller: Caller, system: str, count: int, state: str) -> dict[str, float]:
    def messages(number: int) -> list[dict[str, str]]:
        seed = number + (0 if state == "cold" else count)
        (own,) = mixed_prompts(1, _OWN_TOKENS, _OWN_TOKENS, seed)
        return [{"role": "system", "content": system}, {"role": "user", "content": _text(own)}]

    run = Run()
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(caller.chat(messages(n), _SHARER_ANSWER, StreamClock(run)) for n in range(count))
    )
    return {
        "ttft_p50_ms": 1000 * statistics.median(each.first_s for each in answers),
        "whole_p50_ms": 1000 * statistics.median(each.whole_s for each in answers),
        "all_ms": 1000 * (time.perf_counter() - began),
    }


async def _conversations(caller: Caller, count: int, seed: int) -> dict[str, float]:
    answers: list[Answer] = []

    async def converse(number: int) -> None:
        turns = mixed_prompts(_TURNS, _TURN_TOKENS, _TURN_TOKENS, 10_000 * (seed + 1) + number)
        messages: list[dict[str, str]] = []
        for turn in turns:
            messages.append({"role": "user", "content": _text(turn)})
            answer = await caller.chat(messages, _TURN_ANSWER, StreamClock(Run()))
            messages.append({"role": "assistant", "content": answer.text})
            answers.append(answer)

    began = time.perf_counter()
    await asyncio.gather(*(converse(count * 100 + number) for number in range(count)))
    return {
        "whole_ms": 1000 * (time.perf_counter() - began),
        "ttft_p50_ms": 1000 * statistics.median(each.first_s for each in answers),
    }


def _text(ids: Sequence[int]) -> str:
    return str(tokenizer().decode(ids))


# Figures.


def _report(runs: Mapping[str, Sequence[Figures]], repeats: int) -> None:
    rows = []
    medians: dict[str, dict[str, Any]] = {}
    for load, names in {load: list(of) for load, of in runs[_OURS][0].items()}.items():
        medians[load] = {}
        for name in names:
            found = {side: spread(each[load][name] for each in some) for side, some in runs.items()}
            others = [found[side]["median"] for side in found if side != _OURS]
            better = max if name in _HIGHER_IS_BETTER else min
            ratio = found[_OURS]["median"] / better(others) if others else float("nan")
            medians[load][name] = {"sides": found, "ratio": ratio}
            rows.append((f"{load}: {name}", *map(_shown, found.values()), f"{ratio:.2f}"))
    print_table(
        f"medians of {repeats} (minimum-maximum); the ratio is to the better server",
        ("", *runs, "ratio"),
        rows,
    )
    print(f"written to {save('as_it_comes', {'medians': medians, 'runs': runs})}")


def _shown(figure: Mapping[str, float]) -> str:
    return shown(figure, digits=1 if figure["median"] < 1000 else 0)


if __name__ == "__main__":
    main()
