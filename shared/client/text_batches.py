"""Many texts in one call: sent in several requests where one message cannot hold them all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import orjson

from shared.client.completion import Completion
from shared.errors import InvalidRequest, StreamFailed
from shared.messages.request import MAX_INPUTS
from shared.messages.stream import ChoiceOutput, ErrorDetails, Usage

_REQUESTS_AT_ONCE = 4
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TextOutputs:
    """The outputs for all texts, in their order, each with the result of its text."""

    outputs: tuple[ChoiceOutput, ...]
    usage: Usage
    warnings: tuple[str, ...]


async def complete_all(
    inputs: Sequence[_T],
    max_bytes: int,
    complete: Callable[[list[_T], bool], Awaitable[Completion]],
) -> TextOutputs:
    """Return the outputs for texts, or for pairs of texts.

    Args:
        max_bytes: of the texts of one request.
        complete: sends a request for some texts; the second argument says whether it is one of
            several requests.

    Raises:
        InvalidRequest: there is no text.
        StreamFailed: a text has no result; `param` names it by its number among all.
    """
    parts = list(batches(inputs, max_bytes))
    if not parts:
        raise InvalidRequest("input: there is no text", param="input")
    firsts = [0, *accumulate(len(part) for part in parts)]
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def answer(part: list[_T], first: int) -> Completion:
        async with limit:
            try:
                return await complete(part, len(parts) > 1)
            except StreamFailed as error:
                alone = len(part) == 1 and len(parts) > 1
                details = ErrorDetails.from_exception(error).counted_from(first, alone=alone)
                raise details.to_exception() from None

    tasks = [asyncio.ensure_future(answer(*each)) for each in zip(parts, firsts, strict=False)]
    try:
        return joined(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def batches(inputs: Sequence[_T], max_bytes: int) -> Iterator[list[_T]]:
    """Yield the texts in lists that fit into one request of `max_bytes` each; a text that is too
    long by itself has a list of its own."""
    batch: list[_T] = []
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


def joined(answers: Sequence[Completion]) -> TextOutputs:
    """Return the outputs of all batches, in order.

    Raises:
        StreamFailed: a text has no result; `param` names it by its number.
    """
    outputs: list[ChoiceOutput] = []
    for answer in answers:
        for output in answer.choices:
            if output.error is not None:
                first = len(outputs) - output.choice
                raise output.error.counted_from(first).to_exception()
            if output.embedding is None and output.score is None:
                param = f"input.{len(outputs)}"
                message = f"{param}: it ended without a result ({output.finish_reason})"
                raise StreamFailed(message, code="request_failed", param=param)
            outputs.append(output)
    usage = Usage(sum(answer.usage.prompt_tokens for answer in answers), 0, 0)
    warnings = dict.fromkeys(warning for answer in answers for warning in answer.warnings)
    return TextOutputs(tuple(outputs), usage, tuple(warnings))
