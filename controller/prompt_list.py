"""A list of prompts as requests of their own, one for each prompt."""

from dataclasses import replace

from controller.owned_request import OwnedRequest
from controller.routing import PASSING
from shared.ids import RequestId, new_request_id
from shared.messages.dispatch import choice_seed
from shared.messages.stream import StreamError

_FAULTS_OF_THE_REQUEST = frozenset({"invalid_request", "not_supported"})


def is_list(request: OwnedRequest) -> bool:
    return len(request.request.prompts) > 1


def part_of(
    whole: OwnedRequest, prompt: int, inbox: str, request_id: RequestId | None = None
) -> OwnedRequest:
    """The request for one prompt of a list.

    Its answers are those that the whole list would get from one worker, and its time runs since the
    list was accepted. It is no turn of the list's session: prompts do not wait for one another.
    """
    body = whole.request
    alone = {
        "prompt": body.prompts[prompt], "stream": True, "multiplex": True,
        "request_id": None, "session_id": None, "affinity": None,
    }  # fmt: skip
    return OwnedRequest(
        request_id=request_id or new_request_id(),
        client=whole.client,
        skill=whole.skill,
        inboxes=[inbox],
        request=body.model_copy(update=alone),
        models=whole.models,
        seed=choice_seed(whole.seed, prompt * body.n),
        elapsed_before_ms=whole.elapsed_ms,
        part_of=whole.request_id,
    )


def first_part(request: OwnedRequest) -> OwnedRequest:
    """The first prompt of a list alone, or a request that is none, as it is."""
    return part_of(request, 0, "") if is_list(request) else request


def of_prompt(error: StreamError, prompt: int) -> StreamError:
    """The error of one prompt, saying which, unless it is about another field."""
    if error.param not in (None, "prompt"):
        return error
    return replace(error, message=f"prompt.{prompt}: {error.message.removeprefix('prompt: ')}")


def fails_all(error: StreamError) -> bool:
    """Whether the request itself is wrong, so that nothing of it is served."""
    return error.code in _FAULTS_OF_THE_REQUEST


def passes(error: StreamError) -> bool:
    """Whether a prompt that failed so before its first token only has to come again: nobody had
    room, or a worker thought that we were gone."""
    return error.code in PASSING or error.code == "client_gone"
