"""A process of clients for `benchmarks.routing`: requests of many sizes, models and sessions.

Each line that it reads orders a load ({"seconds", "rate", "in_flight"}), each line that it writes
says what became of it. Of each request it notes how long it was on its way to a worker; of every
fifth likewise a bare hop of the same bytes through NATS.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from typing import Any

import orjson
import uvloop

from benchmarks.pace import steps
from benchmarks.simulated_fleet import HOP, skills
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.ids import ClientName, SkillName
from shared.settings.nats import NatsSettings

_SMALLEST, _LARGEST = 200, 20_000
_ALIKE_BYTES = 2000
_ALIKE_PROMPTS = 20
_SESSIONS = 500
_HOP_EVERY = 5
_PATIENCE_S = 10
_WORDS = 'the of a model worker token answers\n "and" request which memory it\'s Mac prompt'.split(
    " "
)


class Prompts:
    """Of 0.2 to 20 kB, log-uniformly. A fifth begin alike, a fifth are turns of sessions, with all
    that was said before."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed)
        words = self._drawn.choices(_WORDS, k=100_000)
        self._text = " ".join(words)
        self._systems = [self._piece(_ALIKE_BYTES) for _ in range(_ALIKE_PROMPTS)]
        self._sessions = [self._piece(_LARGEST) for _ in range(_SESSIONS)]
        self._skills = list(skills())

    def make(self, number: int) -> tuple[SkillName, dict[str, Any]]:
        """The skill and the body of the next request."""
        size = round(_SMALLEST * (_LARGEST / _SMALLEST) ** self._drawn.random())
        skill = self._drawn.choice(self._skills)
        body: dict[str, Any] = {"max_tokens": 256, "temperature": 0.7, "stream": True}
        messages = [{"role": "user", "content": self._piece(size)}]
        if number % 5 == 0:
            alike = self._drawn.choice(self._systems)[:size]
            rest = messages[0]["content"][len(alike) :] or "Go on."
            messages = [{"role": "system", "content": alike}, {"role": "user", "content": rest}]
        elif number % 5 == 1:
            session = number // 5 % _SESSIONS
            said, half = self._sessions[session], size // 2
            skill = self._skills[session % len(self._skills)]
            body["session_id"] = f"session-{session}"
            messages = [
                {"role": "system", "content": said[:half]},
                {"role": "user", "content": said[half:size]},
            ]
        return skill, {**body, "messages": messages}

    def _piece(self, size: int) -> str:
        start = self._drawn.randrange(len(self._text) - size)
        return self._text[start : start + size]


class Load:
    """One connection with many requests in flight."""

    def __init__(self, bus: Bus, client: ClientName) -> None:
        self._bus = bus
        self._client = client
        self._prompts = Prompts(sum(client.encode()))
        self._inbox = bus.new_inbox()
        self._sent: dict[str, float] = {}
        self._number = 0
        self._changed = asyncio.Event()
        self._result: dict[str, Any] = {}

    async def open(self) -> None:
        await self._bus.subscribe(f"{self._inbox}.*", self._on_answer)

    async def run(self, *, seconds: float, rate: float, in_flight: int) -> dict[str, Any]:
        """Requests at a rate, or where that is 0 always so many; until all are answered."""
        lists: dict[str, list[float]] = {"dispatch_s": [], "hop_s": [], "total_s": []}
        self._result = {"sent": 0, "accepted": 0, "finished": 0, "failed": 0, **lists}
        end = time.perf_counter() + seconds
        if rate:
            async for _ in steps(rate):
                if time.perf_counter() >= end:
                    break
                await self._send()
        while time.perf_counter() < end:
            while len(self._sent) < in_flight:
                await self._send()
            self._changed.clear()
            await self._changed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while self._sent:
                    self._changed.clear()
                    await self._changed.wait()
        self._result["lost"] = len(self._sent)
        self._sent.clear()
        return self._result

    async def _send(self) -> None:
        number = self._number = self._number + 1
        skill, fields = self._prompts.make(number)
        body = orjson.dumps({"request_id": f"{self._client}-{number}", **fields})
        if number % _HOP_EVERY == 0:
            await self._publish(HOP, body, f"hop-{number}")
        await self._publish(subjects.infer(self._client, skill), body, str(number))
        self._result["sent"] += 1

    async def _publish(self, subject: str, body: bytes, name: str) -> None:
        self._sent[name] = time.perf_counter()
        await self._bus.publish(subject, body, reply=f"{self._inbox}.{name}")

    async def _on_answer(self, message: IncomingMessage) -> None:
        name = message.subject.rpartition(".")[2]
        nobody: dict[str, Any] = {"error": {"message": "nobody takes requests"}}
        answer = nobody if message.no_responders else orjson.loads(message.payload)
        result = self._result
        if answer.get("status") == "accepted":
            result["accepted"] += 1
        begun = self._sent.get(name)
        if begun is None or "status" in answer:
            return
        del self._sent[name]
        self._changed.set()
        if "error" in answer:
            result["failed"] += 1
            result["error"] = answer["error"]["message"][:200]
        elif name.startswith("hop-"):
            result["hop_s"].append(answer["arrived_s"] - begun)
        else:
            result["finished"] += 1
            result["dispatch_s"].append(answer["arrived_s"] - begun)
            result["total_s"].append(time.perf_counter() - begun)


async def _run(nats: str, client: ClientName) -> None:
    bus = await Bus.connect(NatsSettings(servers=[nats]), name=client, wait_s=10)
    load = Load(bus, client)
    await load.open()
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await load.run(**json.loads(line))), flush=True)
    await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument("--client", required=True, help="its name")
    arguments = parser.parse_args()
    uvloop.run(_run(arguments.nats, ClientName(arguments.client)))


if __name__ == "__main__":
    main()
