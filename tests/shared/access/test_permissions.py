"""What the server refuses each role: every pair of a role and a subject, on a real server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nats.aio.client import Client

from shared.access.member_credentials import new_seed, public_key
from shared.access.nats_accounts import User
from shared.access.roles import Role
from shared.access.server_config import server_config
from shared.messages.control import CONTROL_ORDERS
from shared.messages.rollout import ROLLOUT_ORDERS
from shared.subjects import SUBJECTS
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

NAMES: dict[str, tuple[Role, str]] = {
    "alice": ("client", "alice"),
    "gateway": ("gateway", "g"),
    "c-1": ("controller", "c-1"),
    "w1": ("worker", "w1"),
    "root": ("admin", "root"),
}
EVERYONE = set(NAMES)
SERVICES = {"gateway", "c-1", "w1"}

ORDERED = {"load", "unload", "pin_model", "requests", "sessions", "pin", "forget"}
"""The orders to workers that a gateway passes on for people on its page."""
STEERED = {"show", "pause", "resume", "rollback"}
"""Those about roll-outs."""


@dataclass(frozen=True)
class Row:
    """A subject, and who may publish on it and who listen."""

    subject: str
    publish: set[str] = field(default_factory=set)
    subscribe: set[str] = field(default_factory=set)


ROWS = (
    # Its own of each client, and those of others.
    Row("mlx.infer.alice.chat", {"alice", "gateway", "root"}, {"c-1"}),
    Row("mlx.infer.bob.chat", {"gateway", "root"}, {"c-1"}),
    Row("mlx.request.alice.cancel", {"alice", "gateway", "root"}, {"c-1"}),
    Row("mlx.request.bob.cancel", {"gateway", "root"}, {"c-1"}),
    Row("mlx.request.alice.status", EVERYONE - {"c-1"}, {"c-1"}),
    Row("mlx.request.bob.status", EVERYONE - {"alice", "c-1"}, {"c-1"}),
    Row("mlx.route.alice.chat", {"alice", "gateway", "root"}, {"c-1"}),
    Row("mlx.route.bob.chat", {"gateway", "root"}, {"c-1"}),
    Row("mlx.requests.list", {"gateway", "root"}, {"c-1"}),
    Row("mlx.requests.other", {"root"}),
    Row("mlx.stream.w1.alice.resend", {"alice", "gateway", "root"}, {"w1"}),
    Row("mlx.stream.w1.bob.resend", {"gateway", "root"}, {"w1"}),
    Row("mlx.stream.w2.alice.resend", {"alice", "gateway", "root"}),
    # Inboxes.
    Row("_INBOX.alice.x", {"alice", *SERVICES}, {"alice", "gateway"}),
    Row("_INBOX.bob.x", SERVICES, {"gateway"}),
    Row("_INBOX.root.x", {*SERVICES, "root"}, {"gateway", "root"}),
    Row("_INBOX.x", SERVICES, {"gateway"}),
    Row("_MLX.controller.c-1.x", {"c-1", "w1"}, {"c-1"}),
    Row("_MLX.controller.c-2.x", {"c-1", "w1"}),
    Row("_MLX.worker.w1.x", {"c-1", "w1"}, {"w1"}),
    Row("_MLX.worker.w2.x", {"c-1", "w1"}),  # whose names cannot be guessed
    Row("_MLX.gateway.g.x", SERVICES, {"gateway"}),
    Row("_MLX.admin.root.x", {*SERVICES, "root"}, {"root"}),
    # Between controllers and workers.
    Row("mlx.controller.c-1.transfer", {"c-1", "root"}, {"c-1"}),
    Row("mlx.controller.c-2.transfer", {"c-1", "root"}),
    Row("mlx.worker.w1.infer", {"c-1", "root"}, {"w1"}),
    Row("mlx.worker.w2.infer", {"c-1", "root"}),
    *(Row(f"mlx.worker.w1.control.{verb}", {"c-1", "gateway", "root"}, {"w1"}) for verb in ORDERED),
    *(Row(f"mlx.worker.w2.control.{verb}", {"c-1", "gateway", "root"}) for verb in ORDERED),
    *(
        Row(f"mlx.worker.w1.control.{verb}", {"c-1", "root"}, {"w1"})
        for verb in CONTROL_ORDERS.keys() - ORDERED
    ),
    Row("mlx.worker.w1.control.dance", {"c-1", "root"}, {"w1"}),
    Row("mlx.worker.w1.b1.alive", {"c-1", "root"}, {"w1"}),
    Row("mlx.worker.w2.b1.alive", {"c-1", "root"}),
    Row("mlx.files.find", {"w1", "root"}, {"w1"}),
    Row("mlx.event.worker.w1", {"w1", "root"}, {"c-1", "root"}),
    Row("mlx.event.worker.w2", {"root"}, {"c-1", "root"}),
    Row("mlx.event.kept.w1", {"w1", "root"}, {"c-1", "root"}),
    Row("mlx.event.kept.w2", {"root"}, {"c-1", "root"}),
    Row("mlx.event.controller.c-1", {"c-1", "root"}, {"c-1", "root"}),
    Row("mlx.event.controller.c-2", {"root"}, {"c-1", "root"}),
    Row("mlx.event.request.c-1.w1", {"w1", "root"}, {"c-1", "root"}),
    Row("mlx.event.request.c-1.w2", {"root"}, {"c-1", "root"}),
    Row("mlx.event.request.c-1", {"root"}, {"root"}),
    Row("mlx.event.request.c-2.w1", {"w1", "root"}, {"root"}),
    Row("mlx.event.request.c-2.w2", {"root"}, {"root"}),
    # What JetStream keeps.
    Row("$KV.mlx_leader.controller", {"c-1", "root"}, {"c-1"}),
    Row("$KV.other.key", {"root"}),
    Row("$JS.API.STREAM.CREATE.KV_mlx_leader", {"c-1", "root"}),
    Row("$JS.API.STREAM.DELETE.KV_mlx_leader", {"root"}),
    Row("$JS.API.STREAM.CREATE.MINE", {"root"}),
    *(Row(f"mlx.rollout.{verb}", {"gateway", "root"}, {"c-1"}) for verb in STEERED),
    *(Row(f"mlx.rollout.{verb}", {"root"}, {"c-1"}) for verb in ROLLOUT_ORDERS.keys() - STEERED),
    Row("$KV.mlx_rollout.state", {"c-1", "root"}, {"c-1"}),
    Row("$KV.mlx_rollout.version.1", {"c-1", "root"}),
    Row("$JS.API.STREAM.MSG.GET.KV_mlx_rollout", {"c-1", "root"}),
    Row("$JS.API.STREAM.MSG.GET.MINE", {"root"}),
    Row("$JS.API.STREAM.CREATE.KV_mlx_rollout", {"c-1", "root"}),
    Row("$JS.API.STREAM.DELETE.KV_mlx_rollout", {"root"}),
    # Questions about how things are.
    Row("mlx.health.controller", {"alice", "gateway", "c-1", "root"}, {"c-1"}),
    Row("mlx.health.controller.c-1", {"alice", "gateway", "c-1", "root"}, {"c-1"}),
    Row("mlx.health.controller.c-2", {"alice", "gateway", "c-1", "root"}),
    Row("mlx.health.worker.w1", {"alice", "gateway", "w1", "root"}, {"w1"}),
    Row("mlx.health.worker.w2", {"alice", "gateway", "root"}),
    Row("mlx.health.cluster", {"alice", "gateway", "root"}, {"c-1"}),
    Row("mlx.log.worker.w1", {"w1", "root"}, {"root"}),
    Row("mlx.log.worker.w2", {"root"}, {"root"}),
    Row("mlx.log.engine.w1", {"w1", "root"}, {"root"}),
    Row("mlx.log.engine.w2", {"root"}, {"root"}),
    Row("mlx.log.controller.c-1", {"c-1", "root"}, {"root"}),
    Row("mlx.log.gateway.g", {"gateway", "root"}, {"root"}),
    Row("mlx.logs.recent", {"root"}, SERVICES),
    Row("$SRV.INFO", {"root"}, SERVICES),
    Row("$SRV.INFO.mlx-worker.w1", {"root"}, SERVICES),
    # All at once, and what is the server's.
    Row(">"),
    Row("mlx.>"),
    Row("_INBOX.>", set(), {"gateway"}),
    Row("_INBOX.*.*", set(), {"gateway"}),
    Row("$SYS.REQ.SERVER.PING"),
    Row("$SYS.>"),
)


@dataclass
class Connected:
    client: Client
    refusals: list[str]

    async def may_publish(self, subject: str) -> bool:
        return await self._is_taken(self.client.publish(subject, b""))

    async def may_subscribe(self, subject: str) -> bool:
        return await self._is_taken(self.client.subscribe(subject))

    async def _is_taken(self, act: object) -> bool:
        before = len(self.refusals)
        await act  # type: ignore[misc]
        for _ in range(2):  # the first may overtake what it is to follow (nats-py 2.16)
            await self.client.flush()
        return len(self.refusals) == before


@pytest.fixture
async def users(tmp_path: Path) -> AsyncIterator[dict[str, Connected]]:
    """A client of each role on a server of the generated configuration."""
    seeds = {name: new_seed() for name in NAMES}
    known = [User(role, name, public_key(seeds[each])) for each, (role, name) in NAMES.items()]
    server = NatsProcess(tmp_path, secured=False)
    server.more = server_config(known, host="127.0.0.1", port=-1, store=tmp_path / "js", tls=None)
    with server:
        connected = {}
        for name, seed in seeds.items():
            connected[name] = await _connect(server.url, seed)
        yield connected
        for one in connected.values():
            await one.client.close()


async def _connect(url: str, seed: str) -> Connected:
    refusals: list[str] = []

    async def on_error(error: Exception) -> None:
        if "Permissions Violation" in str(error) or "permissions violation" in str(error):
            refusals.append(str(error))

    client = Client()
    await client.connect(url, nkeys_seed_str=seed, error_cb=on_error)
    return Connected(client, refusals)


async def test_each_role_may_do_what_its_work_needs_and_nothing_else(
    users: dict[str, Connected],
) -> None:
    wrong = []
    for row in ROWS:
        for name, one in users.items():
            if "*" not in row.subject and ">" not in row.subject:
                if await one.may_publish(row.subject) != (name in row.publish):
                    wrong.append((name, "publish", row.subject))
            if await one.may_subscribe(row.subject) != (name in row.subscribe):
                wrong.append((name, "subscribe", row.subject))
    assert wrong == []


def test_what_a_gateway_may_order_exists_and_what_it_may_not_is_the_rest() -> None:
    assert CONTROL_ORDERS.keys() - ORDERED == {
        "cancel", "attach", "models", "drain", "config", "claim", "contents", "session", "kept"
    }  # fmt: skip
    assert ROLLOUT_ORDERS.keys() - STEERED == {"apply", "plan"}
    assert CONTROL_ORDERS.keys() >= ORDERED and ROLLOUT_ORDERS.keys() >= STEERED


def test_every_subject_of_the_wire_is_among_them() -> None:
    for each in SUBJECTS:
        first = each.pattern.split("<")[0].replace("<inbox>", "_INBOX.")
        assert any(row.subject.startswith(first) for row in ROWS), each.pattern
