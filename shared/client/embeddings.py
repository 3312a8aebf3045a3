"""Embeddings of many texts: sent in several requests where one message cannot hold them all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import orjson

from shared.client.completion import Completion
from shared.errors import InvalidRequest, StreamFailed
from shared.messages import vectors
from shared.messages.request import MAX_INPUTS
from shared.messages.stream import ErrorDetails, Usage

_REQUESTS_AT_ONCE = 4

Text = str | list[int]
"""A text, or its tokens."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of texts, in their order.

    Attributes:
        packed: each vector as float32 in base64; `vectors` has them as numbers.
        warnings: sentences for people.
    """

    packed: tuple[str, ...]
    usage: Usage
    warnings: tuple[str, ...] = ()

    @property
    def vectors(self) -> list[list[float]]:
        return [vectors.unpacked(each) for each in self.packed]


async def embed_all(
    inputs: Text | Sequence[Text],
    max_bytes: int,
    complete: Callable[[list[Text], bool], Awaitable[Completion]],
) -> Embeddings:
    """Return the embeddings of one text or of several.

    Args:
        max_bytes: of the texts of one request.
        complete: sends a request for some texts; the second argument says whether it is one of
            several requests.

    Raises:
        InvalidRequest: there is no text.
        StreamFailed: a text could not be embedded; `param` names it by its number among all.
    """
    is_one = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
    parts = list(
        batches([cast(Text, inputs)] if is_one else cast(Sequence[Text], inputs), max_bytes)
    )
    if not parts:
        raise InvalidRequest("input: there is no text to embed", param="input")
    firsts = [0, *accumulate(len(part) for part in parts)]
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def embed(part: list[Text], first: int) -> Completion:
        async with limit:
            try:
                return await complete(part, len(parts) > 1)
            except StreamFailed as error:
                details = ErrorDetails.from_exception(error).counted_from(first)
                raise details.to_exception() from None

    tasks = [asyncio.ensure_future(embed(*each)) for each in zip(parts, firsts, strict=False)]
    try:
        return joined(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def batches(inputs: Sequence[Text], max_bytes: int) -> Iterator[list[Text]]:
    """Yield the texts in lists that fit into one request of `max_bytes` each; a text that is too
    long by itself has a list of its own."""
    batch: list[Text] = []
    used = 0
    for text in inputs:
        size = len(orjson.dumps(text)) + 1
        if batch and (used + size > max_bytes or len(batch) == MAX_INPUTS):
            yield batch
            batch, used = [], 0
        batch.append(text)
        used += size
    if batch:
        yield batch


def joined(answers: Sequence[Completion]) -> Embeddings:
    """Return the embeddings of all batches, in order.

    Raises:
        StreamFailed: a text could not be embedded; `param` names it by its number.
    """
    packed: list[str] = []
    for answer in answers:
        for output in answer.choices:
            if output.error is not None:
                first = len(packed) - output.choice
                raise output.error.counted_from(first).to_exception()
            packed.append(output.embedding or "")
    usage = Usage(sum(answer.usage.prompt_tokens for answer in answers), 0, 0)
    warnings = dict.fromkeys(warning for answer in answers for warning in answer.warnings)
    return Embeddings(tuple(packed), usage, tuple(warnings))
