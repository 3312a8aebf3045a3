"""What no client library sends: replies that are no inbox, and messages beyond all limits."""

import asyncio
import json
from collections import defaultdict

import nats
import pytest
from nats.aio.msg import Msg

from shared.client import connect
from shared.errors import InvalidRequest
from tests.access.roles import as_client, as_tester, connect_options
from tests.asking import LIMIT_S, Asker, ended
from tests.processes import MAX_PAYLOAD_BYTES, ClusterProcess
from tests.raw_nats import RawConnection

pytestmark = pytest.mark.anyio

_CHAT = "mlx.infer.local.chat"
_NO_INBOXES = [
    "",
    "answers",
    "_INBOX",
    "_INBOXES.a",
    "_inbox.a",
    "_INBOX.*",
    "_INBOX.>",
    "_INBOX.a.*.b",
    "_INBOX.a.>",
    "_INBOX..a",
    "_INBOX.a.",
    ">",
    "*",
    _CHAT,
    "mlx.request.local.cancel",
    "mlx.worker.worker-1.control.drain",
    "mlx.worker.worker-1.infer",
    "mlx.event.worker.worker-1",
    "$JS.API.INFO",
    "_INBOX.local." + "x" * 300,
    "_INBOX.local." + "x" * 3900,
    "_INBOX.local.\x01x",
    "_INBOX.local.\x7fx",
    "_INBOX.local.é",
]


async def test_no_request_is_answered_or_served_outside_the_inboxes(
    tiny_cluster: ClusterProcess,
) -> None:
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    answered = asyncio.Event()

    async def look(msg: Msg) -> None:
        seen[msg.subject].append(msg.data)
        if msg.subject == "_INBOX.local.good" and json.loads(msg.data).get("done"):
            answered.set()

    spy = await nats.connect(**connect_options(as_tester(tiny_cluster.url)))
    await spy.subscribe(">", cb=look)
    await spy.flush()
    sent = []
    async with RawConnection(as_client(tiny_cluster.url)) as publisher:
        for number, reply in enumerate(_NO_INBOXES):
            for fields in ({}, {"temperature": 9}, {"stream": False}):
                body = {"prompt": "x", "request_id": f"bad-{number}", **fields}
                sent.append(json.dumps(body).encode())
                publisher.publish(_CHAT, sent[-1], reply)
        # The controller hears this last, so all that it answers to the others comes before.
        good = b'{"prompt": "x", "max_tokens": 2}'
        publisher.publish(_CHAT, good, "_INBOX.local.good")
        await asyncio.wait_for(answered.wait(), LIMIT_S)
    await spy.close()

    assert seen.pop(_CHAT) == [*sent, good]
    served = b"".join(payload for payloads in seen.values() for payload in payloads)
    assert b'"request_id":"bad-' not in served


async def test_a_message_beyond_what_the_server_takes_ends_its_publisher_and_nothing_else(
    tiny_cluster: ClusterProcess,
) -> None:
    good = b'{"prompt": "x", "max_tokens": 300, "seed": 1}'
    async with Asker.connect(tiny_cluster) as asker:
        (expected,) = await asker.answers([good])
        beside = await asker.ask(good)
        async with RawConnection(as_client(tiny_cluster.url)) as publisher:
            assert publisher.info["max_payload"] == MAX_PAYLOAD_BYTES
            publisher.send(b"PUB %s _INBOX.a %d\r\n" % (_CHAT.encode(), 9 * 1024 * 1024))
            assert b"-ERR 'Maximum Payload Violation'" in await publisher.last_words()
        await ended([beside])
        (behind,) = await asker.answers([good])
        assert beside.token_ids == behind.token_ids == expected.token_ids


@pytest.mark.parametrize("size_bytes", [MAX_PAYLOAD_BYTES // 4 + 1, 9 * 1024 * 1024])
async def test_the_client_library_refuses_what_is_too_large_before_sending_it(
    tiny_cluster: ClusterProcess, size_bytes: int
) -> None:
    async with connect(as_client(tiny_cluster.url)) as cluster:
        with pytest.raises(InvalidRequest) as caught:
            cluster.stream(prompt="x" * size_bytes)
        assert caught.value.code == "payload_too_large"
        assert f"this cluster accepts {MAX_PAYLOAD_BYTES // 4}" in caught.value.message
        answer = await cluster.generate(prompt="x", max_tokens=3)
        assert len(answer.token_ids) <= 3
