"""A whole cluster, asked as its users ask it."""

import asyncio
from typing import Any

import nats
import orjson
import pytest
from nats.aio.msg import Msg

from shared.client import connect
from tests.access.roles import as_client, connect_options
from tests.processes import ClusterProcess

pytestmark = pytest.mark.anyio


async def test_the_real_model_knows_the_capital_of_france(demo_cluster: ClusterProcess) -> None:
    async with connect(as_client(demo_cluster.url)) as cluster:
        stream = cluster.stream("What is the capital of France?", temperature=0)
        text = "".join([chunk.text async for chunk in stream])
    assert text == "The capital of France is Paris."
    assert stream.usage is not None and stream.usage.completion_tokens == 7


async def test_a_stream_that_broke_off_can_be_resumed_by_its_client(
    tiny_cluster: ClusterProcess,
) -> None:
    async with connect(as_client(tiny_cluster.url)) as cluster:
        asked: dict[str, Any] = {"prompt": "Once", "max_tokens": 20, "seed": 5}
        whole = await cluster.generate(**asked)
        begun = [chunk async for chunk in cluster.stream(**asked)][:8]
        token_ids = [token for chunk in begun for token in chunk.token_ids]
        text = "".join(chunk.text for chunk in begun)
        rest = await cluster.generate(
            **asked, resume={"token_ids": token_ids, "text_sent": len(text)}
        )
    assert token_ids + rest.token_ids == whole.token_ids
    assert text + rest.text == whole.text
    assert rest.choices[0].index == len(token_ids)


async def test_sixteen_streams_through_two_workers_come_whole_and_in_order(
    tiny_cluster: ClusterProcess,
) -> None:
    client = await nats.connect(**connect_options(as_client(tiny_cluster.url)))
    messages: dict[int, list[dict[str, object]]] = {number: [] for number in range(16)}
    all_done = asyncio.Event()

    async def collect(number: int) -> str:
        inbox = client.new_inbox()

        async def on_message(msg: Msg) -> None:
            messages[number].append(orjson.loads(msg.data))
            if all(any(m.get("done") for m in got) for got in messages.values()):
                all_done.set()

        await client.subscribe(inbox, cb=on_message)
        return inbox

    inboxes = [await collect(number) for number in range(16)]
    for number, inbox in enumerate(inboxes):
        body = {"prompt": f"stream {number}", "max_tokens": 40, "temperature": 0.8}
        await client.publish("mlx.infer.local.chat", orjson.dumps(body), reply=inbox)
    await asyncio.wait_for(all_done.wait(), 60)
    await asyncio.sleep(0.2)  # nothing may follow an end
    await client.close()

    workers = set()
    for got in messages.values():
        assert got[0]["status"] == "accepted"
        assert sum(bool(message.get("done")) for message in got) == 1
        assert got[-1]["done"] and "error" not in got[-1]
        next_index = 0
        for message in got:
            if "index" in message:
                assert message["index"] == next_index
                next_index += len(message["token_ids"])  # type: ignore[arg-type]
                workers.add(message["worker"])
        assert got[-1]["usage"]["completion_tokens"] == next_index  # type: ignore[index]
    assert workers == {"worker-1", "worker-2"}
