"""A whole cluster, asked as its users ask it."""

from typing import Any

import orjson
import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.asking import Asker
from tests.processes import ClusterProcess

pytestmark = pytest.mark.anyio


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
    bodies = [
        {"prompt": f"stream {number}", "max_tokens": 40, "temperature": 0.8} for number in range(16)
    ]
    async with Asker.connect(tiny_cluster) as asker:
        answers = await asker.answers(map(orjson.dumps, bodies))
        await asker.settle()  # nothing may follow an end

    workers = set()
    for answer in answers:
        got = answer.messages
        words = [message["status"] for message in got if "status" in message]
        assert words.count("accepted") == 1
        assert set(words[: words.index("accepted")]) <= {"queued"}, "its worker says it first"
        assert len(answer.ends) == 1
        assert got[-1]["done"] and "error" not in got[-1]
        next_index = 0
        for message in got:
            if "index" in message:
                assert message["index"] == next_index
                next_index += len(message["token_ids"])
                workers.add(message["worker"])
        assert got[-1]["usage"]["completion_tokens"] == next_index
    assert workers == {"worker-1", "worker-2"}
