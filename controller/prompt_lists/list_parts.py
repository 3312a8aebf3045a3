"""The parts of a list of prompts: some choices of one prompt each, or some of the texts to embed,
as requests of their own.

The id of a part is derived from the request, so that a request that is published again finds its
parts on the workers that have them.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from controller.requests.request import INPUTS_PER_PART, RequestKey, TrackedRequest
from shared.client.assembler import StreamAssembler
from shared.client.recovery import StreamRecovery
from shared.ids import RequestId
from shared.messages.dispatch import choice_seed
from shared.messages.stream import ErrorDetails, Timings, Usage


@dataclass(slots=True, eq=False)
class PromptListPart:
    """
    Attributes:
        number: index of the part in its list.
        prompt: index of the prompt, or of the first text.
        first: number of its first choice in the whole list.
        tries: how often the part was submitted and failed.
        losses: the number of those in which its worker lost contact with the leader.
        request: while the part is submitted; None before, after a failure, and after its end.
        answered: its choices are complete, or failed.
    """

    number: int
    prompt: int
    first: int
    choices: int
    tries: int = 0
    losses: int = 0
    request: TrackedRequest | None = None
    assembler: StreamAssembler | None = None
    recovery: StreamRecovery | None = None
    answered: bool = False
    error: ErrorDetails | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    route: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def numbers(self) -> range:
        """The numbers of its choices in the whole list."""
        return range(self.first, self.first + self.choices)


def split(whole: TrackedRequest, max_choices: int) -> list[PromptListPart]:
    """Split a request into parts with at most `max_choices` choices of one prompt each, or with
    `INPUTS_PER_PART` texts to embed."""
    body = whole.contents
    if body.embeds:
        return [
            PromptListPart(number, first, first, min(INPUTS_PER_PART, body.choices - first))
            for number, first in enumerate(range(0, body.choices, INPUTS_PER_PART))
        ]
    size = min(body.n, max(1, max_choices))
    parts: list[PromptListPart] = []
    for first in (
        prompt * body.n + offset
        for prompt in range(max(1, len(body.prompts)))
        for offset in range(0, body.n, size)
    ):
        choices = min(size, body.n - first % body.n)
        parts.append(PromptListPart(len(parts), first // body.n, first, choices))
    return parts


def part_id(key: RequestKey, choices: range, tries: int = 0) -> RequestId:
    """Return the id of the part with these choices of a list. It does not depend on the leader."""
    client, request_id = key
    name = f"{client}\0{request_id}\0{choices.start}\0{choices.stop}\0{tries}".encode()
    return RequestId(f"part-{hashlib.blake2b(name, digest_size=12).hexdigest()}")


def first_part(whole: TrackedRequest, now: float) -> TrackedRequest:
    """Return the request for the first part of a list."""
    return part_request(whole, split(whole, whole.contents.n)[0], "", now)


def part_request(
    whole: TrackedRequest, part: PromptListPart, inbox: str, now: float
) -> TrackedRequest:
    """Return the request for one part. Its answers are those that one worker would give in the
    whole list. It is not a turn of a session: parts do not wait for one another."""
    body = whole.contents
    changes: dict[str, Any] = {
        "stream": True, "multiplex": True,
        "request_id": None, "session_id": None, "affinity": None,
    }  # fmt: skip
    if body.embeds:
        chosen = slice(part.first, part.first + part.choices)
        changes["input"] = body.prompts[chosen]
        if isinstance(body.query, list):
            changes["query"] = body.query[chosen]
    else:
        changes["n"] = part.choices
        if body.prompts:
            changes["prompt"] = body.prompts[part.prompt]
    request_id = part_id(whole.key, part.numbers, part.tries)
    return TrackedRequest.arrived(
        whole.client,
        whole.skill,
        [inbox],
        body.model_copy(update=changes),
        whole.models,
        request_id=request_id,
        seed=choice_seed(whole.seed, part.first),
        now=now,
        elapsed_before_ms=whole.elapsed_ms(now),
        part_of=whole.request_id,
        trace=whole.trace.part(request_id, now) if whole.trace is not None else None,
    )
