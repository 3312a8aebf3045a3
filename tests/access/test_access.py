"""At a secured server nobody gets in without a key of their own, and no refusal stays unseen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.bus import Bus
from shared.errors import BusUnreachable
from shared.settings.nats import NatsSettings
from tests.access.members import Members
from tests.access.refusals import Refusals
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def members(tmp_path: Path) -> Members:
    (tmp_path / "members").mkdir()
    return Members.create(tmp_path / "members")


@pytest.fixture
def guarded(tmp_path: Path, members: Members) -> Iterator[NatsProcess]:
    """A server of these members."""
    server = NatsProcess(tmp_path, secured=False)
    server.more = dict(members.server_settings)
    with server:
        yield server


async def connected(nats: NatsSettings) -> Bus:
    return await Bus.connect(nats, name="test", inbox_prefix="_INBOX.local", wait_s=30)


async def test_who_has_no_key_stays_outside(guarded: NatsProcess, members: Members) -> None:
    for known in (members.nats(guarded.url, "client", "local"), members.tester(guarded.url)):
        await (await connected(known)).close()
    with pytest.raises(BusUnreachable):
        await Bus.connect(NatsSettings(servers=[guarded.url]), name="test", wait_s=0)
    keyless = known.model_copy(update={"nkey_seed_file": None})
    with pytest.raises(BusUnreachable):
        await Bus.connect(keyless, name="test", wait_s=0)


def test_who_is_not_among_the_names_is_told_so(members: Members) -> None:
    with pytest.raises(LookupError, match=r"no worker 'w-77' among the NAMES"):
        members.nats("nats://127.0.0.1", "worker", "w-77")


async def test_what_is_refused_is_found_once_with_who_it_was(
    guarded: NatsProcess, members: Members, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    refusals = Refusals()
    refusals.watch(log)
    bus = await connected(members.nats(guarded.url, "client", "local"))
    await bus.publish("mlx.infer.local.chat", b"")
    await bus.flush()
    assert refusals.new() == []
    await bus.publish("mlx.infer.ada.chat", b"")
    await bus.flush()
    await bus.close()
    (line,) = refusals.new()
    assert members.named(line).endswith(
        '"client-local" - Publish Violation - Subject "mlx.infer.ada.chat"'
    )
    assert refusals.new() == []
