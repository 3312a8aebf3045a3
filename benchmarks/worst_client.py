"""One client does its worst: how long does another one wait for admission?

    python -m benchmarks.worst_client [--seconds 15] [--attacks cannot-fit,turns] [--secured]

A real cluster with default settings and the demo model, open or with TLS and a key for everybody.
While a process of its own attacks as one client, in one way at a time, another client asks for one
token, again and again. Shown: the time from publishing its request to its admission to the batch
(the whole time, without prefill and decode), beside the same alone. Limit: three times as long, or
a second longer. Refused requests of the other client are counted, too: none may be. Writes
results/worst_client.json.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks.children import started
from benchmarks.local_cluster import LocalCluster, local_cluster
from benchmarks.measures import print_table, save
from shared.bus import Bus
from shared.client import connect
from shared.errors import ClusterError
from shared.ids import ClientName
from shared.settings.nats import NatsSettings
from shared.subjects import inbox_prefix
from tests.access.roles import as_client

_ALONE = 30
_GIVE_UP_S = 60.0
_SETTLES_S = 2.0
_ATTACKER, _OTHER = ClientName("local"), ClientName("ada")
_BODY_BYTES = 1_900_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15, help="of each attack")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="several with commas")
    parser.add_argument("--secured", action="store_true", help="TLS, and a key for everybody")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--nats", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack is not None:
        uvloop.run(_attack(arguments.attack, NatsSettings.model_validate_json(arguments.nats)))
        return
    settings = {"CLUSTER__WORKER__ENGINES__COUNT": "auto"}
    with local_cluster(settings=settings, secured=arguments.secured) as local:
        result = uvloop.run(_measure(local, arguments.attacks.split(","), arguments.seconds))
    _report(result)


# The other client.


async def _measure(local: LocalCluster, attacks: list[str], seconds: float) -> dict[str, Any]:
    attacker = as_client(local.url, _ATTACKER).model_dump_json()
    other = as_client(local.url, _OTHER)
    alone = await _ask(other, lambda asked: asked < _ALONE)
    result: dict[str, Any] = {"alone": _summary(*alone), "attacks": {}}
    for attack in attacks:
        print(attack, file=sys.stderr)
        command = [sys.executable, "-m", "benchmarks.worst_client", "--nats", attacker]
        with started([*command, "--attack", attack], stdout=subprocess.DEVNULL):
            await asyncio.sleep(_SETTLES_S)
            ends_at = time.perf_counter() + seconds
            during = await _ask(other, lambda _: time.perf_counter() < ends_at)  # noqa: B023
        result["attacks"][attack] = _summary(*during)
        await asyncio.sleep(_SETTLES_S)
    return result


async def _ask(nats: NatsSettings, goes_on: Callable[[int], bool]) -> tuple[list[float], list[str]]:
    """The seconds until admission of one request after another, and what others were told."""
    admitted_s: list[float] = []
    errors: list[str] = []
    async with connect(nats, client=_OTHER) as cluster:
        for asked in itertools.count():
            if not goes_on(asked):
                return admitted_s, errors
            published_at = time.perf_counter()
            try:
                async with asyncio.timeout(_GIVE_UP_S):
                    answer = await cluster.generate(prompt="Once", max_tokens=1)
            except (ClusterError, TimeoutError) as error:
                errors.append(repr(error))
                continue
            took_s = time.perf_counter() - published_at
            computed_ms = answer.timings.prefill_ms + answer.timings.decode_ms
            admitted_s.append(took_s - computed_ms / 1000)
    raise AssertionError


def _summary(admitted_s: list[float], errors: list[str]) -> dict[str, Any]:
    return {
        "requests": len(admitted_s) + len(errors),
        "refused": errors,
        "median_s": statistics.median(admitted_s) if admitted_s else None,
        "max_s": max(admitted_s, default=None),
    }


def _report(result: dict[str, Any]) -> None:
    alone_s = result["alone"]["median_s"]
    limit_s = max(3 * alone_s, alone_s + 1)
    rows = []
    for name, each in [("alone", result["alone"]), *result["attacks"].items()]:
        times = [each["median_s"], each["max_s"]]
        shown = ["-" if value is None else f"{value * 1000:.0f}" for value in times]
        is_within = each["max_s"] is not None and each["max_s"] <= limit_s and not each["refused"]
        rows.append((
            name, str(each["requests"]), *shown, str(len(each["refused"])),
            "yes" if is_within else "NO",
        ))  # fmt: skip
        for error in sorted(set(each["refused"]))[:3]:
            print(f"{name}: {error}", file=sys.stderr)
    columns = ("attack", "requests", "median, ms", "maximum, ms", "refused", "within the limit")
    print_table(f"time until admission; limit {limit_s * 1000:.0f} ms", columns, rows)
    print(f"written to {save('worst_client', result)}")


# The attacks, each until the process is ended.


async def _attack(name: str, nats: NatsSettings) -> None:
    prefix = inbox_prefix("client", _ATTACKER)
    bus = await Bus.connect(nats, name="attacker", inbox_prefix=prefix, wait_s=30)
    inbox = bus.new_inbox()
    await bus.subscribe(f"{inbox}.>", _ignore)
    await ATTACKS[name](bus, inbox, nats)


async def _ignore(_: object) -> None:
    pass


async def _publish(bus: Bus, inbox: str, body: dict[str, Any]) -> None:
    subject = f"mlx.infer.{_ATTACKER}.chat"
    await bus.publish(subject, json.dumps(body).encode(), reply=f"{inbox}.{os.urandom(4).hex()}")


async def _turns(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """Turns of one session, as large as a request may be, that wait for one another."""
    text = "word " * (_BODY_BYTES // 5)
    for number in itertools.count():
        message = {"role": "user", "content": text[: -number % 1000 - 1]}
        body = {"messages": [message], "session_id": "s", "max_tokens": 4}
        await _publish(bus, inbox, body)
        await bus.flush(timeout_s=30)
        await asyncio.sleep(0.1)


async def _many_messages(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """Bodies of as many tiny messages as fit into a request."""
    messages = [{"role": "user", "content": "x"}] * (_BODY_BYTES // 34)
    for _ in itertools.count():
        await _publish(bus, inbox, {"messages": messages, "max_tokens": 4})
        await bus.flush(timeout_s=30)


async def _many_calls(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """Bodies of as many tool calls as fit."""
    call = {"function": {"name": "f", "arguments": ""}}
    message = {"role": "assistant", "tool_calls": [call] * 60_000}
    for _ in itertools.count():
        await _publish(bus, inbox, {"messages": [message], "max_tokens": 4})
        await bus.flush(timeout_s=30)


async def _cannot_fit(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """Eight prompts at a time that are far longer than any context."""
    for number in itertools.count():
        words = f"{number} " + "abcd efgh " * (_BODY_BYTES // 10)
        await _publish(bus, inbox, {"prompt": words, "max_tokens": 4})
        await bus.flush(timeout_s=30)
        if number % 8 == 7:
            await asyncio.sleep(0.5)


async def _at_once(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """300 requests at once, and again when they may have ended."""
    for _ in itertools.count():
        for number in range(300):
            await _publish(bus, inbox, {"prompt": f"{number} Once", "max_tokens": 32})
        await bus.flush(timeout_s=30)
        await asyncio.sleep(20)


async def _cancellations(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """1,000 requests that are cancelled at once, again and again."""
    subject = f"mlx.request.{_ATTACKER}.cancel"
    for round_ in itertools.count():
        for number in range(1000):
            name = f"r-{round_}-{number}"
            await _publish(bus, inbox, {"prompt": "Once", "max_tokens": 64, "request_id": name})
            await bus.publish(subject, json.dumps({"request_id": name}).encode())
        await bus.flush(timeout_s=30)
        await asyncio.sleep(1)


async def _connects(bus: Bus, inbox: str, nats: NatsSettings) -> None:
    """500 new connections to NATS a second, or as many as TLS allows; the last 400 are held."""
    address = urlsplit(nats.servers[0])
    context = ssl.create_default_context(cafile=nats.tls.ca_file) if nats.tls is not None else None
    held: list[asyncio.StreamWriter] = []
    for _ in itertools.count():
        begun_at = time.perf_counter()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            if context is not None:
                await reader.readline()  # INFO
                await writer.start_tls(context)
            writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
            held.append(writer)
        if len(held) > 400:
            held.pop(0).close()
        await asyncio.sleep(max(0.0, 0.002 - (time.perf_counter() - begun_at)))


ATTACKS: dict[str, Callable[[Bus, str, NatsSettings], Awaitable[None]]] = {
    "turns": _turns,
    "many-messages": _many_messages,
    "many-calls": _many_calls,
    "cannot-fit": _cannot_fit,
    "at-once": _at_once,
    "cancellations": _cancellations,
    "connects": _connects,
}


if __name__ == "__main__":
    main()
