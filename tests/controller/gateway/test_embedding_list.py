"""The body of an answer with embeddings: what it says, and that other callers have their turns."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from controller.gateway.openai import embeddings as embeddings_module
from controller.gateway.openai.embeddings import embedding_list
from shared.client import Embeddings
from shared.messages import vectors
from shared.messages.stream import Usage

pytestmark = pytest.mark.anyio

_NUMBERS = [[0.5, -0.25], [1.0, 0.125]]
_EMBEDDINGS = Embeddings(tuple(map(vectors.packed, _NUMBERS)), Usage(7, 0, 0))


async def _body(*, packed: bool) -> Any:
    return json.loads(orjson.dumps(await embedding_list(_EMBEDDINGS, "m", packed=packed)))


@pytest.mark.parametrize("packed", [True, False])
async def test_the_vectors_come_in_order_as_numbers_or_packed(packed: bool) -> None:
    body = await _body(packed=packed)
    said = list(_EMBEDDINGS.packed) if packed else _NUMBERS
    assert [entry["embedding"] for entry in body["data"]] == said
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert {entry["object"] for entry in body["data"]} == {"embedding"}
    assert (body["object"], body["model"]) == ("list", "m")


async def test_while_many_vectors_are_unpacked_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embeddings_module, "_MAX_SLICE_S", 0.0)
    many = Embeddings(_EMBEDDINGS.packed * 50, Usage(7, 0, 0))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await embedding_list(many, "m", packed=False)
    task.cancel()
    assert turns >= len(many.packed)
