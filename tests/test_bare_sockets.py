"""What one client sends from a bare socket, on a cluster of real processes with and without keys:
no process ends or loses its connection, and another client is served."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared.bus import Bus, IncomingMessage
from shared.client import Cluster, connect
from tests.faults.asks import ENDLESS
from tests.fuzz.target import ATTACKER, WITNESS, Target, target
from tests.models import make_tiny_model
from tests.processes import wait_until
from tests.raw_nats import RawConnection, publish

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

_SUBSCRIPTIONS = 80
"""Processes have fewer: a forged id below hits one of each."""
_HUGE = (2**31 - 1, 2**31, 2**62, 2**63 - 1)
_INFER = f"mlx.infer.{ATTACKER}.chat".encode()
_SUBJECTS = (
    _INFER,
    f"mlx.request.{ATTACKER}.status".encode(),
    b"mlx.health.cluster",
    b"mlx.health.controller",
)


@pytest.fixture(scope="module", params=[True, False], ids=["secured", "open"])
def attacked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("bare-sockets")
    model = make_tiny_model(folder / "tiny", context_tokens=4096)
    with target(folder, model, secured=request.param) as found:
        yield found


@pytest.fixture
async def witness(attacked: Target) -> AsyncIterator[Cluster]:
    """Another client, who is served before and after; meanwhile no process ends or connects
    anew."""
    async with connect(attacked.nats(WITNESS), client=WITNESS) as cluster:
        before = _connections(attacked)
        await _serve(cluster)
        yield cluster
        await _serve(cluster)
        assert _connections(attacked) == before
        assert await _is_well(cluster)


def _connections(attacked: Target) -> dict[int, tuple[str, int | None]]:
    return {pid: (state.name, state.port) for pid, state in attacked.states().items()}


async def _serve(cluster: Cluster) -> None:
    async with asyncio.timeout(30):
        answer = await cluster.generate(prompt="salt", max_tokens=4, logit_bias=ENDLESS)
    assert answer.text


async def _is_well(cluster: Cluster) -> bool:
    health = await cluster.health()
    states = {worker.id: worker.state for worker in health.workers}
    return health.status == "ready" and states == {"worker-1": "ready", "worker-2": "ready"}


async def _send(attacked: Target, *messages: bytes) -> None:
    """From one socket; the server has read all of it on return."""
    async with RawConnection(attacked.nats(ATTACKER)) as eve:
        for message in messages:
            eve.send(message)
        with contextlib.suppress(ConnectionError):
            await eve.round_trip()


async def _overheard(attacked: Target, subject: str) -> dict[str, Any]:
    """The next message there, as the process sends it."""
    heard: asyncio.Queue[IncomingMessage] = asyncio.Queue()

    async def hear(message: IncomingMessage) -> None:
        heard.put_nowait(message)

    bus = await Bus.connect(attacked.tap, name="tap", wait_s=10)
    try:
        await bus.subscribe(subject, hear)
        async with asyncio.timeout(30):
            found: dict[str, Any] = json.loads((await heard.get()).payload)
    finally:
        await bus.close()
    return found


async def _ends(attacked: Target, *bodies: bytes) -> list[dict[str, Any]]:
    """The last message that each of these requests gets."""
    async with RawConnection(attacked.nats(ATTACKER)) as eve:
        eve.send(f"SUB _INBOX.{ATTACKER}.bare.* 1\r\n".encode())
        for number, body in enumerate(bodies):
            eve.send(publish(_INFER, body, f"_INBOX.{ATTACKER}.bare.{number}".encode()))
        ends: dict[bytes, dict[str, Any]] = {}
        async with asyncio.timeout(60):
            while len(ends) < len(bodies):
                line = await eve.line()
                assert line, "the server closed the connection"
                if line.startswith((b"MSG", b"HMSG")):
                    message = json.loads(await eve.line())
                    if message.get("done"):
                        ends[line.split()[1]] = message
    return [ends[key] for key in sorted(ends, key=lambda key: int(key.rpartition(b".")[2]))]


async def test_what_workers_and_controllers_say_is_not_forged(
    attacked: Target, witness: Cluster
) -> None:
    """A vertical tab in a subject must not choose a subscription (point 1)."""
    worker = await _overheard(attacked, "mlx.event.worker.worker-1")
    controller = await _overheard(attacked, "mlx.event.controller.*")
    ghost = {**worker, "worker": {**worker["worker"], "id": "ghost", "boot_id": "ghost"}}
    left = {**worker, "type": "left"}
    old = {**controller, "protocol": 1}
    leads = [
        {
            **controller,
            "controller": {**controller["controller"], "id": "c-9", "leader": True, "term": term},
        }
        for term in _HUGE
    ]
    for event in (ghost, left, old, *leads):
        payload = json.dumps(event).encode()
        await _send(
            attacked,
            *(publish(_INFER + b"\x0b%d" % sid, payload) for sid in range(1, _SUBSCRIPTIONS + 1)),
        )
    assert await _is_well(witness)


async def test_a_number_that_cannot_be_encoded_ends_its_request_alone(
    attacked: Target, witness: Cluster
) -> None:
    """Admitted at once, and from the queue (point 2)."""
    hostile = b'{"messages": [{"role": "user", "content": "salt"}], "max_tokens": 4, '
    hostile += b'"chat_template_kwargs": {"x": %s}}' % (b"9" * 30)
    long = json.dumps({"prompt": "salt", "max_tokens": 200, "logit_bias": ENDLESS}).encode()
    ends = await _ends(attacked, hostile, *[long] * 12, hostile)
    assert [ends[0]["error"]["code"], ends[-1]["error"]["code"]] == ["invalid_request"] * 2
    assert not any("error" in end for end in ends[1:-1])


_HEADERS = b"NATS/1.0 \xff\xfe\xfd\r\n\r\n"


async def test_bytes_that_cannot_be_read_make_no_process_deaf(
    attacked: Target, witness: Cluster
) -> None:
    """In headers, reply subjects and subjects (point 3)."""
    sizes = b"%d %d" % (len(_HEADERS), len(_HEADERS))
    for subject in _SUBJECTS:
        inbox = f"_INBOX.{ATTACKER}.x".encode()
        await _send(
            attacked,
            b"HPUB " + subject + b" " + sizes + b"\r\n" + _HEADERS + b"\r\n",
            publish(subject, b"{}", inbox + b"\xff\xfe"),
            publish(subject, b"{}", inbox + b"\x0b7"),
            publish(subject + b"\xff", b"{}", inbox),
        )
    await _serve(witness)


@pytest.mark.parametrize("depth", [33, 150, 197, 5000])
async def test_a_deep_value_is_refused_before_it_reaches_a_worker(
    attacked: Target, witness: Cluster, depth: int
) -> None:
    """(Point 4)"""
    nested = b'{"x":' * depth + b"1" + b"}" * depth
    body = b'{"prompt": "salt", "max_tokens": 4, "chat_template_kwargs": %s}' % nested
    ends = await _ends(attacked, *[body] * 8)
    assert {end["error"]["code"] for end in ends} == {"invalid_request"}
    await _serve(witness)


@pytest.mark.parametrize("characters", [257, 2000, 3900])
async def test_a_long_reply_subject_costs_no_connection(
    attacked: Target, witness: Cluster, characters: int
) -> None:
    """(Point 5)"""
    inbox = f"_INBOX.{ATTACKER}.".encode().ljust(characters, b"a")
    body = json.dumps({"prompt": "salt", "max_tokens": 50, "logit_bias": ENDLESS}).encode()
    await _send(attacked, *[publish(_INFER, body, inbox)] * 20)
    await _serve(witness)
    await wait_until(lambda: _is_well(witness), 30)
