"""What a client with a key of its own may not do: a cluster of real processes, with TLS."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.access.member_credentials import MemberCredentials, read_token
from shared.client import Cluster, connect
from shared.errors import StreamFailed
from tests.access.members import nats_of
from tests.faults.asks import ENDLESS
from tests.machines import SecuredCluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

LIMIT_S = 20
MOST = 50
"""Requests of a client that have not ended."""


class Scene:
    """
    Attributes:
        ada, eve: two clients.
    """

    def __init__(self, cluster: SecuredCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.ada = read_token(cluster.token("client", "ada"))
        self.eve = read_token(cluster.token("client", "eve"))


@pytest.fixture(scope="module")
def scene(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTER__SECURITY__MAX_REQUESTS_PER_CLIENT", str(MOST))
        folder = tmp_path_factory.mktemp("attacks")
        cluster = SecuredCluster(folder, stack, tiny_model)
        cluster.serve()
        yield Scene(cluster, folder)


@asynccontextmanager
async def client(scene: Scene, member: MemberCredentials) -> AsyncIterator[Cluster]:
    async with connect(nats_of(member, scene.folder), client=member.name) as cluster:
        yield cluster


class Attacker:
    """A connection by hand, with eve's key.

    Attributes:
        refused: what the server said to it.
        heard: what came in.
    """

    def __init__(self, connection: Client, refused: list[str]) -> None:
        self.connection = connection
        self.refused = refused
        self.heard: list[Msg] = []

    async def hear(self, subject: str) -> None:
        async def take(message: Msg) -> None:
            self.heard.append(message)

        await self.connection.subscribe(subject, cb=take)

    async def is_known(self, request_id: str) -> bool:
        """Whether the leader knows a request of this id as one of eve's."""
        query = json.dumps({"request_id": request_id}).encode()
        answer = await self.connection.request("mlx.request.eve.status", query, timeout=LIMIT_S)
        return bool(json.loads(answer.data)["state"] != "unknown")

    async def settled(self) -> list[str]:
        """What was refused so far; the server has seen all that was sent."""
        await self.connection.flush()
        await self.connection.flush()
        return self.refused


@asynccontextmanager
async def attacker(scene: Scene) -> AsyncIterator[Attacker]:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    own = nats_of(scene.eve, scene.folder)
    assert own.nkey_seed_file is not None and own.tls is not None
    connection = await nats.connect(
        own.servers,
        nkeys_seed=own.nkey_seed_file,
        tls=ssl.create_default_context(cafile=own.tls.ca_file),
        inbox_prefix="_INBOX.eve",
        error_cb=note,
    )
    try:
        yield Attacker(connection, refused)
    finally:
        await connection.close()


def ask(tokens: int = 20, **fields: Any) -> dict[str, Any]:
    return {"prompt": "salt", "max_tokens": tokens, "logit_bias": ENDLESS, **fields}


async def test_it_does_not_hear_what_others_are_told(scene: Scene) -> None:
    async with attacker(scene) as eve, client(scene, scene.ada) as ada:
        subjects = [
            "_INBOX.ada.>",
            "_INBOX.>",
            ">",
            "mlx.>",
            "mlx.event.request.*.*",
            "mlx.log.*.*",
        ]
        for subject in subjects:
            await eve.hear(subject)
        assert len(await eve.settled()) == len(subjects)
        assert (await ada.generate(**ask())).text
        await eve.settled()
        assert eve.heard == []


async def test_it_does_not_speak_in_the_name_of_others(scene: Scene) -> None:
    async with attacker(scene) as eve, client(scene, scene.ada) as ada:
        stream = ada.stream(**ask(tokens=100))
        async with stream:
            async for _ in stream:
                break
            query = json.dumps({"request_id": stream.request_id}).encode()
            body = json.dumps(ask()).encode()
            attempts = [
                ("mlx.infer.ada.chat", body),
                ("mlx.request.ada.cancel", query),
                ("mlx.request.ada.status", query),
                ("mlx.route.ada.chat", body),
                ("mlx.stream.mac-2.ada.resend", query),
            ]
            inbox = eve.connection.new_inbox()
            await eve.hear(inbox)
            for subject, payload in attempts:
                await eve.connection.publish(subject, payload, reply=inbox)
            assert len(await eve.settled()) == len(attempts)
            assert not await eve.is_known(stream.request_id)
            resent = await eve.connection.request(
                "mlx.stream.mac-2.eve.resend", query, timeout=LIMIT_S
            )
            assert json.loads(resent.data)["state"] == "unknown"
            completion = await stream.collect()
        assert completion.finish_reason == "length"
        assert eve.heard == []


async def test_it_has_nothing_sent_to_others(scene: Scene) -> None:
    async with attacker(scene) as eve, client(scene, scene.ada) as ada:
        heard: list[bytes] = []

        async def take(message: Any) -> None:
            heard.append(message.payload)

        inbox = ada.bus.new_inbox()
        await ada.bus.subscribe(inbox, take)
        await ada.bus.flush()
        request_id = "to-somebody-else"
        body = json.dumps(ask(request_id=request_id)).encode()
        query = json.dumps({"request_id": request_id}).encode()
        for subject, payload in (
            ("mlx.infer.eve.chat", body),
            ("mlx.request.eve.status", query),
            ("mlx.route.eve.chat", body),
            ("mlx.stream.mac-2.eve.resend", query),
        ):
            for reply in (inbox, "mlx.worker.mac-2.control.drain", "_INBOX.ada.>", "_INBOX.*"):
                await eve.connection.publish(subject, payload, reply=reply)
        await eve.settled()
        assert not await eve.is_known(request_id)  # it was not even taken
        assert (await ada.generate(**ask())).text  # and nobody drains
        assert heard == []


async def test_it_gives_no_orders_and_forges_no_facts(scene: Scene) -> None:
    subjects = [
        "mlx.worker.mac-2.control.drain",
        "mlx.worker.mac-2.control.config",
        "mlx.worker.mac-2.infer",
        "mlx.controller.c-1.infer",
        "mlx.rollout.apply",
        "mlx.rollout.show",
        "mlx.event.worker.mac-2",
        "mlx.event.controller.c-1",
        "mlx.event.request.c-1.mac-2",
        "mlx.logs.recent",
        "$JS.API.STREAM.DELETE.KV_mlx_leader",
        "$JS.API.STREAM.LIST",
        "$KV.mlx_leader.controller",
        "$KV.mlx_rollout.state",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.ada.x",
        "_MLX.controller.c-1.x",
    ]
    async with attacker(scene) as eve, client(scene, scene.ada) as ada:
        for subject in subjects:
            await eve.connection.publish(subject, b"{}")
        assert len(await eve.settled()) == len(subjects)
        health = await ada.health()
        assert [worker.state for worker in health.workers] == ["ready"]
        assert (await ada.generate(**ask())).text


async def test_a_flood_is_bounded_and_others_are_served(scene: Scene) -> None:
    async with client(scene, scene.eve) as eve, client(scene, scene.ada) as ada:
        codes: list[str] = []
        bounded = asyncio.Event()

        async def one() -> None:
            try:
                await eve.generate(**ask(tokens=150))
                codes.append("done")
            except StreamFailed as error:
                codes.append(error.code)
                bounded.set()

        flood = [asyncio.create_task(one()) for _ in range(6 * MOST)]
        await asyncio.wait_for(bounded.wait(), LIMIT_S)
        assert (await ada.generate(**ask())).text
        await asyncio.gather(*flood)
        assert codes.count("rate_limit_exceeded") > 0 and codes.count("done") > 0
        assert set(codes) <= {"done", "rate_limit_exceeded", "queue_full"}


def test_no_secret_is_told(scene: Scene) -> None:
    """What the machines wrote, and what they say when they are asked."""
    folder = Path(scene.cluster.begun["folder"])
    secrets = [seed.read_text() for seed in (folder / "seeds").iterdir()]
    secrets += re.findall(r"[A-Za-z0-9+/]{40,}", (folder / "authority.key").read_text())
    assert len(secrets) > 5
    told = [log.read_text() for log in scene.folder.rglob("*.log")]
    first = scene.cluster.first
    commands = ("status", "status --json", "logs --no-follow", "auth ls", "auth ls --json")
    told += [first.run("cluster", *command.split()) for command in commands]
    assert any("accepted" in text for text in told)
    for text in told:
        assert not [secret for secret in secrets if secret in text]
