"""Bugs that are planted into the real code, one at least for each promise, so that it is seen that
random scripts find them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from unittest import mock

from controller.requests.client_messages import cancellation
from shared.errors import RequestError

Make = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug.

    Attributes:
        promise: what the judge says, in part, where it is found.
        what: the bug, in words.
        target: what is replaced, as `module:name` or `module:Class.name`.
        make: given the right one, makes the wrong one.
    """

    promise: str
    what: str
    target: str
    make: Make

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        module, _, path = self.target.partition(":")
        owner: Any = import_module(module)
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        with mock.patch.object(owner, name, self.make(owner.__dict__[name])):
            yield


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _always(value: object) -> Make:
    return lambda _: lambda *_, **__: value


def _without_comparing(right: Any) -> Any:
    async def write(leadership: Any, term: int, *, after: int, **fields: Any) -> None:
        kept = await leadership._store.read(timeout_s=1)
        await right(leadership, term, after=kept.sequence, **fields)

    return write


def _believed(_: Any) -> Any:
    def on_term(leadership: Any, term: int) -> None:
        if leadership.leads and term > leadership.term:
            leadership._begin(term + 1)

    return on_term


def _never(_: Any) -> Any:
    return property(lambda _: False)


def _another_seed(right: Any) -> Any:
    def give_up(request: Any, *told: Any, **how: Any) -> None:
        right(request, *told, **how)
        request.seed += 1

    return give_up


def _loses_a_token(right: Any) -> Any:
    def continuation(progress: Any, heard: list[int]) -> Any:
        known = right(progress, heard)
        if known is None:
            return None
        return known.model_copy(
            update={"token_ids": {choice: ids[1:] for choice, ids in known.token_ids.items()}}
        )

    return continuation


def _ends_twice(right: Any) -> Any:
    def end_finished(endings: Any, request: Any) -> None:
        if request.request is not None:
            end = cancellation(request, endings._out.now)
            endings._out.send_to_client(request, end, request.inboxes)
        right(endings, request)

    return end_finished


def _of_other_time(right: Any) -> Any:
    return lambda timers, request: min(right(timers, request), request.arrived_at + 0.4)


def _never_the_same(right: Any) -> Any:
    return lambda request: f"{right(request)} {id(request)}"


def _fails_for_one(error: Exception) -> Make:
    def make(right: Any) -> Any:
        def read(handler: Any, message: Any) -> Any:
            if b'"r0"' in message.payload:
                raise error
            return right(handler, message)

        return read

    return make


def _one_more(right: Any) -> Any:
    def chunk(job: Any, output: Any, usage: Any) -> Any:
        shifted = [token + 1 for token in output.token_ids]
        return right(job, replace(output, token_ids=shifted), usage)

    return chunk


PLANTS = (
    Plant("no end", "a worker that is gone is not noticed",
          "controller.lifecycle.machine:RequestStateMachine._on_worker_gone", _nothing),
    Plant("no end", "dispatches that are not answered are waited for without end",
          "controller.dispatch.dispatch_queue:DispatchQueue._fail_unanswered", _always([])),
    Plant("gave up", "a client that hears nothing does nothing",
          "shared.client.recovery:StreamRecovery._due", _nothing),
    Plant("choice", "an attempt after a failure has another seed",
          "controller.requests.request:TrackedRequest.give_up_attempt", _another_seed),
    Plant("choice", "an attempt goes on a token too early",
          "controller.requests.answer_progress:AnswerProgress.continuation", _loses_a_token),
    Plant("choice", "tokens of a list are told wrong",
          "controller.prompt_lists.list_job:PromptListJob.chunk", _one_more),
    Plant("turns at once", "a turn does not wait for the one before",
          "controller.requests.session_queues:SessionQueues.is_next", _always(True)),
    Plant("after it was replaced", "a leader that was away goes on as if it had not been",
          "controller.leader.leader:LeaderService._was_stalled", _never),
    Plant("two lead in a term", "the leader's record is written over whoever wrote it",
          "controller.leader.election:LeaderElection._write", _without_comparing),
    Plant("controllers lead", "a leader that was overtaken leads on",
          "controller.leader.election:LeaderElection._lose", _nothing),
    Plant("not claimed by", "workers whose leader nobody knows any more are left alone",
          "controller.leader.election:LeaderElection._term_of_most", _always(None)),
    Plant("not claimed by", "a term that was heard is believed",
          "controller.leader.election:LeaderElection.on_term", _believed),
    Plant("answered twice", "the leader tells the end that the worker told",
          "controller.lifecycle.endings:EndingActions.end_finished", _ends_twice),
    Plant("counts at", "a request that ended is still counted at its worker",
          "controller.fleet.placement:RequestPlacement.ended", _nothing),
    Plant("has requests", "a worker keeps requests that ended",
          "worker.requests.table:RequestTable.end", _nothing),
    Plant("has r", "the leader keeps requests that ended",
          "controller.requests.store:RequestStore.end", _nothing),
    Plant("ended before its time", "deadlines come too early",
          "controller.lifecycle.timers:RequestTimers._end_at", _of_other_time),
    Plant("failed without a reason", "some requests are refused",
          "controller.intake.request_handler:ClientMessageHandler._read",
          _fails_for_one(RequestError("planted", code="payload_too_large"))),
    Plant("taken for another request", "the same request does not look the same twice",
          "shared.messages.request:InferenceRequest.fingerprint", _never_the_same),
    Plant("a fault of the cluster", "some requests cannot be read",
          "controller.intake.request_handler:ClientMessageHandler._read",
          _fails_for_one(RuntimeError("planted"))),
)  # fmt: skip
