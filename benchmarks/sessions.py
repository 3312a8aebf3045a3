"""Sessions on three real workers: their turns sent back to where the last one was served, or not.

    python -m benchmarks.sessions [--sessions 50] [--turns 6] [--at-once 6] [--repeats 1]

A real NATS server, the real `controller` and `worker` commands, the demo model, one engine with
one thread on each worker. First the policy `prefix-aware`, where sessions are sticky, then
`round-robin` with `sticky_sessions: false`, with a new cluster. Each session has a system prompt of
its own (150 to 300 tokens); each turn sends the whole conversation with a new question and gets a
short answer. In every round each session has one turn, in an order that is drawn anew but is the
same for both sides. In the middle one worker is ended (SIGTERM) and started again while the others
go on; the last round waits for it. What that moves is counted apart. Writes results/sessions.json.
"""

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.children import end
from benchmarks.loads import prose, tokenizer
from benchmarks.local_cluster import kept_on_disk
from benchmarks.measures import percentiles_ms, print_table, save, spread
from benchmarks.stage import SCRIPTS, child, nats_server
from shared.cli.local.serving import wait_until_ready
from shared.client import Cluster, connect
from shared.errors import ClusterError

_SIDES: dict[str, dict[str, str]] = {
    "prefix-aware": {},
    "round-robin": {
        "CLUSTER__CONTROLLER__ROUTING__POLICY": "round-robin",
        "CLUSTER__CONTROLLER__ROUTING__STICKY_SESSIONS": "false",
    },
}
_WORKERS = ("worker-1", "worker-2", "worker-3")
_ENDED = "worker-2"
_SYSTEM_TOKENS = (150, 300)
_READY_WITHIN_S = 180
_TIMEOUT_MS = 600_000
_TRIES = 5
_QUESTIONS = (
    "What is this text about?", "Which word of it matters most?", "What comes before that?",
    "Who would want to read it, and why?", "Say it in other words.", "What is missing there?",
    "Name one thing that it does not mention.", "How would you begin it?", "Is any of it new?",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer; times since the side began.

    Attributes:
        worker: that gave it.
        route: why it went there, as its controller says.
    """

    session: int
    number: int
    asked_s: float
    first_token_s: float
    seconds: float
    worker: str
    prompt_tokens: int
    cached_tokens: int
    answer: str
    route: dict[str, Any] | None = field(repr=False, default=None)

    @property
    def ended_s(self) -> float:
        return self.asked_s + self.seconds


@dataclass(frozen=True, slots=True)
class Absence:
    """Of a worker: asked to end, gone, and ready again; seconds since the side began."""

    worker: str
    asked_s: float
    gone_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class SideResult:
    """`failures`: of turns that were asked again, in words."""

    turns: list[Turn]
    absence: Absence
    seconds: float
    failures: list[str]


def kind(before: Turn, turn: Turn, absence: Absence) -> str:
    """What became of a later turn: it `stayed` where the one before was served, was `displaced`
    from there by the absence of that worker, or `moved` without such a reason."""
    if turn.worker == before.worker:
        return "stayed"
    was_there = before.worker == absence.worker and before.asked_s < absence.asked_s
    return "displaced" if was_there and turn.ended_s > absence.asked_s else "moved"


class _Workers:
    """Processes, each with its own folder on disk, which it finds again when it is started anew."""

    def __init__(self, nats_url: str, folder: Path) -> None:
        self._nats_url = nats_url
        self._folder = folder
        self._running: dict[str, tuple[contextlib.ExitStack, subprocess.Popen[bytes]]] = {}
        self._starts: Counter[str] = Counter()

    def start(self, name: str) -> None:
        self._starts[name] += 1
        command = [str(SCRIPTS / "worker"), "--nats", self._nats_url, "--id", name]
        settings = {
            "CLUSTER__WORKER__ENGINES__COUNT": "1",
            "CLUSTER__WORKER__ENGINES__THREADS": "1",
            "CLUSTER__WORKER__DRAIN_TIMEOUT_MS": str(_TIMEOUT_MS),
            **kept_on_disk(self._folder / name),
            "CLUSTER__LOGGING__LEVEL": "warning",
        }
        log = self._folder / f"{name}-{self._starts[name]}.log"
        stack = contextlib.ExitStack()
        self._running[name] = stack, stack.enter_context(child(command, log, settings))

    def drain(self, name: str) -> None:
        """Ask it to end, and wait until it has finished its streams."""
        stack, process = self._running.pop(name)
        end(process, _TIMEOUT_MS / 1000)
        stack.close()

    def end_all(self) -> None:
        for stack, _ in self._running.values():
            stack.close()


class _Side:
    """One side of the comparison: a cluster, and sessions that talk to it."""

    def __init__(self, cluster: Cluster, workers: _Workers, arguments: argparse.Namespace) -> None:
        self._cluster = cluster
        self._workers = workers
        self._arguments = arguments
        self._turns: list[Turn] = []
        self._failures: list[str] = []
        self._absence: Absence | None = None
        self._back = asyncio.Event()
        self._began_at = 0.0

    async def run(self, systems: Sequence[str], seed: int) -> SideResult:
        await self._until_ready()
        await self._cluster.generate("Hello", max_tokens=1)  # whatever a first request has to do
        said = [[{"role": "system", "content": text}] for text in systems]
        free = [asyncio.Lock() for _ in systems]
        order = iter(_order(len(systems), self._arguments.turns, seed))
        half = len(systems) * self._arguments.turns // 2
        self._began_at = time.perf_counter()

        async def client() -> None:
            for number, session in order:
                if number == self._arguments.turns:
                    await self._back.wait()  # or no turn would tell what is there after it
                async with free[session]:
                    question = _QUESTIONS[(session + number) % len(_QUESTIONS)]
                    said[session].append({"role": "user", "content": question})
                    await self._until_answered(session, number, said[session])
                if len(self._turns) == half:
                    tasks.create_task(self._restart())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._arguments.at_once):
                tasks.create_task(client())
        assert self._absence is not None
        ended_s = max(turn.ended_s for turn in self._turns)
        return SideResult(self._turns, self._absence, ended_s, self._failures)

    @property
    def _now_s(self) -> float:
        return time.perf_counter() - self._began_at

    async def _until_answered(self, session: int, number: int, said: list[dict[str, str]]) -> None:
        for _ in range(_TRIES):
            try:
                turn = await self._ask(session, number, said)
            except ClusterError as error:
                self._failures.append(f"{self._now_s:.1f} s: {error.message}")
            else:
                said.append({"role": "assistant", "content": turn.answer})
                self._turns.append(turn)
                return
        raise SystemExit(f"session {session} gets no answer: {self._failures[-1]}")

    async def _ask(self, session: int, number: int, said: Sequence[dict[str, str]]) -> Turn:
        asked_s, first_s, text = self._now_s, 0.0, ""
        stream = self._cluster.stream(
            list(said), session_id=f"session-{session}", max_tokens=self._arguments.max_tokens,
            temperature=0, timeout_ms=_TIMEOUT_MS, debug=True,
        )  # fmt: skip
        async for chunk in stream:
            if chunk.token_ids and not first_s:
                first_s = self._now_s - asked_s
            text += chunk.text
        seconds, usage = self._now_s - asked_s, stream.usage
        assert usage is not None and stream.worker is not None
        return Turn(
            session, number, asked_s, first_s or seconds, seconds, str(stream.worker),
            usage.prompt_tokens, usage.cached_tokens, text, stream.route,
        )  # fmt: skip

    async def _restart(self) -> None:
        asked_s = self._now_s
        await asyncio.to_thread(self._workers.drain, _ENDED)
        gone_s = self._now_s
        self._workers.start(_ENDED)
        await self._until_ready()
        self._absence = Absence(_ENDED, asked_s, gone_s, self._now_s)
        self._back.set()

    async def _until_ready(self) -> None:
        async with asyncio.timeout(_READY_WITHIN_S):
            await wait_until_ready(self._cluster, _WORKERS, lambda _: None)


def _order(sessions: int, turns: int, seed: int) -> Iterator[tuple[int, int]]:
    """The number of each turn and its session. Drawn: in a fixed order round-robin would send the
    turns of a session to always the same workers, or never."""
    draw = random.Random(seed)
    for number in range(1, turns + 1):
        for session in draw.sample(range(sessions), sessions):
            yield number, session


def _systems(sessions: int, seed: int) -> list[str]:
    """Pieces of this project's pages, so that no two begin alike."""
    draw = random.Random(seed)
    pieces = prose([draw.randint(*_SYSTEM_TOKENS) for _ in range(sessions)])
    return [f"You know this text: {tokenizer().decode(piece)}" for piece in pieces]


def _run(side: str, arguments: argparse.Namespace, seed: int) -> SideResult:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-sessions-")))
        nats_url, _, _ = stack.enter_context(nats_server(folder))
        controller = [str(SCRIPTS / "controller"), "--nats", nats_url, "--id", "controller-1"]
        settings = {"CLUSTER__LOGGING__LEVEL": "warning", **_SIDES[side]}
        stack.enter_context(child(controller, folder / "controller.log", settings))
        workers = _Workers(nats_url, folder)
        stack.callback(workers.end_all)
        for name in _WORKERS:
            workers.start(name)

        async def run() -> SideResult:
            async with connect(nats_url, wait_s=10) as cluster:
                systems = _systems(arguments.sessions, seed)
                return await _Side(cluster, workers, arguments).run(systems, seed)

        return uvloop.run(run())


def _figures(result: SideResult) -> dict[str, Any]:
    by_session: dict[int, dict[int, Turn]] = {}
    for turn in result.turns:
        by_session.setdefault(turn.session, {})[turn.number] = turn
    later = [turn for turn in result.turns if turn.number > 1]
    kinds: Counter[str] = Counter()
    moved = []
    for turn in later:
        before = by_session[turn.session][turn.number - 1]
        found = kind(before, turn, result.absence)
        kinds[found] += 1
        if found == "displaced":
            kinds["displaced_later"] += turn.asked_s > result.absence.back_s
        if found == "moved":
            moved.append({"from": before.worker, "to": turn.worker, "route": turn.route})
    prompt_tokens = sum(turn.prompt_tokens for turn in result.turns)
    cached_tokens = sum(turn.cached_tokens for turn in result.turns)
    return {
        "later_turns": len(later),
        **{name: kinds[name] for name in ("stayed", "moved", "displaced", "displaced_later")},
        "hit_rate": kinds["stayed"] / (len(later) - kinds["displaced"]),
        "whole_hit_rate": kinds["stayed"] / len(later),
        "later_first_token_ms": percentiles_ms([turn.first_token_s for turn in later]),
        "prompt_tokens": prompt_tokens,
        "computed_tokens": prompt_tokens - cached_tokens,
        "reused_share": cached_tokens / prompt_tokens,
        "seconds": result.seconds,
        "failures": len(result.failures),
        "absence": asdict(result.absence),
        "moved_turns": moved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=6, help="sessions that talk")
    parser.add_argument("--max-tokens", type=int, default=8, help="of an answer")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error("--turns: at least 2, one before the restart and one after it")
    results: dict[str, list[SideResult]] = {side: [] for side in _SIDES}
    for repeat in range(arguments.repeats):
        for side in _SIDES:
            print(f"run {repeat + 1}/{arguments.repeats}: {side}", file=sys.stderr)
            results[side].append(_run(side, arguments, repeat))
            figures = {name: [_figures(each) for each in some] for name, some in results.items()}
            runs = {name: [asdict(each) for each in some] for name, some in results.items()}
            saved = {"options": vars(arguments), "figures": figures, "runs": runs}
            path = save("sessions", saved)
    _report(figures, arguments)
    print(f"answers that are the same on both sides: {_same_answers(results)}")
    print(f"written to {path}")


def _report(figures: Mapping[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> None:
    def first_token(side: str, part: str) -> list[float]:
        return [run["later_first_token_ms"][part] for run in figures[side]]

    def ratio(side: str, part: str) -> list[float]:
        pairs = zip(first_token(side, part), first_token("round-robin", part), strict=True)
        return [one / other for one, other in pairs]

    def of(side: str, name: str, times: float = 1) -> list[float]:
        return [times * run[name] for run in figures[side]]

    rows = [
        ("later turns", 0, lambda side: of(side, "later_turns")),
        ("  where the one before was served", 0, lambda side: of(side, "stayed")),
        ("  elsewhere", 0, lambda side: of(side, "moved")),
        (f"  displaced by the absence of {_ENDED}", 0, lambda side: of(side, "displaced")),
        ("    of these after it was back", 0, lambda side: of(side, "displaced_later")),
        ("hit rate without the displaced %", 1, lambda side: of(side, "hit_rate", 100)),
        ("hit rate of all %", 1, lambda side: of(side, "whole_hit_rate", 100)),
        ("TTFT of later turns, p50 ms", 0, lambda side: first_token(side, "p50")),
        ("  / round-robin", 2, lambda side: ratio(side, "p50")),
        ("TTFT of later turns, p95 ms", 0, lambda side: first_token(side, "p95")),
        ("  / round-robin", 2, lambda side: ratio(side, "p95")),
        ("tokens of prompts", 0, lambda side: of(side, "prompt_tokens")),
        ("  computed", 0, lambda side: of(side, "computed_tokens")),
        ("  reused %", 1, lambda side: of(side, "reused_share", 100)),
        ("seconds", 0, lambda side: of(side, "seconds")),
        ("turns that failed and were asked again", 0, lambda side: of(side, "failures")),
    ]
    print_table(
        f"{arguments.sessions} sessions of {arguments.turns} turns on {len(_WORKERS)} workers, "
        f"medians of {arguments.repeats} (minimum-maximum)",
        ("", *figures),
        [
            (name, *(_shown(of_side(side), digits) for side in figures))
            for name, digits, of_side in rows
        ],
    )


def _same_answers(results: Mapping[str, list[SideResult]]) -> str:
    sides = [
        {(run, turn.session, turn.number): turn.answer for run, each in enumerate(some)
         for turn in each.turns}
        for some in results.values()
    ]  # fmt: skip
    same = sum(len({side[at] for side in sides}) == 1 for at in sides[0])
    return f"{same} of {len(sides[0])}"


def _shown(values: Sequence[float], digits: int = 0) -> str:
    found = spread(values)
    middle = f"{found['median']:.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({found['min']:.{digits}f}-{found['max']:.{digits}f})"


if __name__ == "__main__":
    main()
