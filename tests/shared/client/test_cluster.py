"""What a client can ask and order, besides requests."""

from collections.abc import AsyncIterator

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.client import Cluster, connect
from shared.codec import decode, encode
from shared.errors import InvalidRequest, Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.control import ControlReply, LoadModel
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client, as_role
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

MAC = WorkerId("mac-of-test-cluster")
ORDER = LoadModel(model=ModelId("demo"))


@pytest.fixture
async def admin(nats_settings: NatsSettings) -> AsyncIterator[Cluster]:
    """Whose orders workers may be given."""
    nats = as_role("admin", "ada", nats_settings.servers[0])
    async with connect(nats, client="ada") as connected:
        yield connected


async def test_an_order_is_answered_by_its_worker(bus: Bus, admin: Cluster) -> None:
    async def refuse(message: IncomingMessage) -> None:
        assert decode(LoadModel, message.payload) == ORDER
        reply = ControlReply(worker=MAC, ok=False, code="unknown_model", message="no demo here")
        await bus.publish(message.reply, encode(reply))

    subscription = await bus.subscribe(subjects.worker_control(MAC, "load"), refuse)
    await bus.flush()
    reply = await admin.control(MAC, ORDER)
    assert (reply.ok, reply.code, reply.message) == (False, "unknown_model", "no demo here")
    await subscription.unsubscribe()


async def test_an_order_to_nobody_is_unavailable(admin: Cluster) -> None:
    with pytest.raises(Unavailable, match="worker nobody does not answer"):
        await admin.control(WorkerId("nobody"), ORDER)


@pytest.mark.parametrize("name", ["", "*", "a.b", ">", "a b"])
async def test_an_order_to_no_name_is_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(InvalidRequest, match="no worker has the name"):
        await cluster.control(WorkerId(name), ORDER)


async def test_without_nats_nobody_else_is_blamed(server: NatsProcess) -> None:
    async with connect(as_client(server.url)) as cluster:
        server.kill()
        with pytest.raises(Unavailable, match="the connection to NATS is lost") as caught:
            await cluster.health()
        assert caught.value.code == "disconnected"
