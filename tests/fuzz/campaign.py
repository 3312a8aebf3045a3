"""Bursts of hostile bytes against a running cluster; after each, another client asks."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from shared.bus import Bus, IncomingMessage
from shared.client import Cluster, connect
from shared.errors import ClusterError
from tests.fuzz.http_attack import HttpAttack, ask
from tests.fuzz.judge import Burst, Limits, growth, leaks, memory_over_time, violations
from tests.fuzz.nats_attack import NatsAttack, Scenery, internal_json
from tests.fuzz.target import ATTACKER, WITNESS, ProcessState, Target
from tests.raw_nats import RawConnection

_ALONE = 15
_MAX_INTERNAL = 300
_GIVE_UP_S = 60.0
_CONNECTIONS, _LINES = 4, 40
_READ_S = 0.5
_HOUR_S = 3600.0
_PARTS = 12


@dataclass(frozen=True, slots=True)
class Report:
    """
    Attributes:
        grown: share by which the memory of each process grew in the last hour, or in the second
            half of a shorter campaign.
        memory_mib: of each process, in each twelfth of the campaign.
    """

    seed: int
    bursts: int
    sent: int
    limits: Limits
    slowest_s: dict[str, float]
    violations: list[str]
    grown: dict[str, float]
    memory_mib: dict[str, list[int]]


class FuzzCampaign:
    """
    Args:
        say: shows a line of progress.
        spare_s: see `Limits`.
    """

    def __init__(
        self, target: Target, seed: int, say: Callable[[str], None], *, spare_s: float = 1.0
    ) -> None:
        self._target = target
        self._seed = seed
        self._random = Random(seed)
        self._say = say
        self._spare_s = spare_s
        self._sent = 0
        self._bursts: list[Burst] = []

    async def run(self, seconds: float, *, bursts: int | None = None) -> Report:
        """Attack for some seconds, or for some bursts if those are fewer."""
        async with connect(self._target.nats(WITNESS), client=WITNESS) as witness:
            internal = await self._overhear(witness)
            limits = await self._measure_alone(witness)
            before = self._target.states()
            scenery = self._scenery(before, internal)
            began_at = time.monotonic()
            while time.monotonic() < began_at + seconds and len(self._bursts) != bursts:
                burst = await self._burst(scenery, witness, began_at)
                self._bursts.append(burst)
                for line in violations(self._states(-2, before), [burst], limits):
                    self._say(line)
                if burst.number % 50 == 0:
                    self._say(f"{burst.at_s:.0f} s: {burst.number} bursts, {self._sent:,} messages")
        return self._report(before, limits, time.monotonic() - began_at)

    def _states(self, index: int, before: dict[int, ProcessState]) -> dict[int, ProcessState]:
        known = self._bursts[index : index + 1]
        return dict(known[0].states) if len(self._bursts) >= -index and known else before

    def _report(self, before: dict[int, ProcessState], limits: Limits, took_s: float) -> Report:
        grown = growth(self._bursts, within_s=min(_HOUR_S, took_s / 2))
        found = violations(before, self._bursts, limits)
        if took_s >= 2 * _HOUR_S:
            found += leaks(grown)
        slowest = {
            way: max((burst.served_s.get(way) or 0.0 for burst in self._bursts), default=0.0)
            for way in limits.alone_s
        }
        memory_mib = memory_over_time(self._bursts, parts=_PARTS)
        return Report(
            self._seed, len(self._bursts), self._sent, limits, slowest, found, grown, memory_mib
        )

    # The attacker.

    async def _burst(self, scenery: Scenery, witness: Cluster, began_at: float) -> Burst:
        random, number = self._random, len(self._bursts) + 1
        kind = random.choice(("nats", "nats", "http"))
        attack = self._nats_burst(scenery) if kind == "nats" else self._http_burst()
        served: dict[str, float | None] = {}
        errors: list[str] = []
        await attack
        for way, serve in self._ways(witness).items():
            served[way] = None
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(_GIVE_UP_S):
                    await serve()
                served[way] = time.monotonic() - asked_at
            except (ClusterError, OSError, TimeoutError, ValueError) as error:
                errors.append(f"the other client was not served over {way}: {error!r}")
        at_s = time.monotonic() - began_at
        return Burst(number, kind, at_s, served, errors, self._target.states())

    async def _nats_burst(self, scenery: Scenery) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CONNECTIONS):
                attack = NatsAttack(Random(self._random.random()), scenery)
                hears = self._random.random() < 0.5
                tasks.create_task(self._nats_connection(attack, hears=hears))

    async def _nats_connection(self, attack: NatsAttack, *, hears: bool) -> None:
        with contextlib.suppress(OSError):  # the server closes what breaks its protocol
            async with RawConnection(self._target.nats(ATTACKER)) as connection:
                reading = asyncio.create_task(connection.discard())
                try:
                    if hears:
                        connection.send(f"SUB _INBOX.{ATTACKER}.> 1\r\n".encode())
                    for _ in range(_LINES):
                        connection.send(attack.line())
                        self._sent += 1
                        await connection.drain()
                    await asyncio.wait([reading], timeout=_READ_S if hears else 0.05)
                finally:
                    reading.cancel()

    async def _http_burst(self) -> None:
        key = self._target.keys.get(ATTACKER)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2 * _CONNECTIONS):
                attack = HttpAttack(Random(self._random.random()), key)
                tasks.create_task(self._http_connection(attack))

    async def _http_connection(self, attack: HttpAttack) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                for piece in attack.connection():
                    if writer.is_closing():
                        return
                    writer.write(piece)
                    self._sent += 1
                    await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_READ_S):
                        while await reader.read(65536):
                            pass
            finally:
                writer.close()

    @property
    def _port(self) -> int:
        port = urlsplit(self._target.gateway.url).port
        assert port is not None
        return port

    # The other client.

    def _ways(self, witness: Cluster) -> dict[str, Callable[[], Awaitable[None]]]:
        """How the other client asks."""

        async def over_nats() -> None:
            await witness.generate(prompt="salt", max_tokens=1)

        return {"NATS": over_nats, "HTTP": self._ask_over_http}

    async def _ask_over_http(self) -> None:
        """
        Raises:
            ValueError: the answer is no success.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(ask(self._target.keys.get(WITNESS)))
            answer = await reader.read(-1)
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ValueError(answer[:300])

    async def _measure_alone(self, witness: Cluster) -> Limits:
        alone: dict[str, list[float]] = {}
        for _ in range(_ALONE):
            for way, serve in self._ways(witness).items():
                asked_at = time.monotonic()
                await serve()
                alone.setdefault(way, []).append(time.monotonic() - asked_at)
        return Limits({way: median(times) for way, times in alone.items()}, self._spare_s)

    async def _overhear(self, witness: Cluster) -> dict[str, list[Any]]:
        """Return JSON that the processes send each other, by subject."""
        heard: dict[str, list[Any]] = {}
        bus = await Bus.connect(self._target.tap, name="tap", wait_s=30)

        async def take(message: IncomingMessage) -> None:
            body = internal_json(message.payload)
            if body is not None and sum(map(len, heard.values())) < _MAX_INTERNAL:
                heard.setdefault(message.subject, []).append(body)

        try:
            await bus.subscribe("mlx.>", take)
            await bus.flush()
            for number in range(3):
                await witness.generate(prompt="salt", max_tokens=3, session_id=f"s-{number}")
            async with asyncio.timeout(30):
                while not any(subject.startswith("mlx.event.worker.") for subject in heard):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await bus.close()
        return heard

    def _scenery(self, states: dict[int, ProcessState], heard: dict[str, list[Any]]) -> Scenery:
        events = [
            body
            for subject, bodies in heard.items()
            for body in bodies
            if subject.startswith("mlx.event.worker.")
        ]
        boots = sorted({str(event["worker"]["boot_id"]) for event in events})
        names = [state.name for state in states.values()]
        return Scenery(
            client=ATTACKER,
            controllers=[name for name in names if name.startswith("c")] or ["controller-1"],
            workers=[name for name in names if name.startswith("worker-")],
            boots=boots,
            internal=[body for bodies in heard.values() for body in bodies],
            restricted=not self._target.secured,
        )


def as_json(report: Report) -> str:
    return json.dumps({
        "seed": report.seed, "bursts": report.bursts, "sent": report.sent,
        "alone_s": dict(report.limits.alone_s), "slowest_s": report.slowest_s,
        "grown": report.grown, "violations": report.violations,
    }, indent=2)  # fmt: skip
