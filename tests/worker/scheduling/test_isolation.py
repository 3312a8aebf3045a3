"""What fails for one request ends that request, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shared.ids import BootId
from shared.messages.request_events import AttemptFailed
from shared.messages.stream import DoneMessage, FailedMessage
from shared.settings import ClusterSettings
from tests.worker.recording_engine import RecordingEngine
from tests.worker.sessions.stores import new_store
from tests.worker.values import CLIENT, MAC, OWNER, TINY, dispatched
from worker.link.facts import (
    EngineMeasured,
    Fact,
    PrefillAdvanced,
    PrefillStarted,
    SequenceOutput,
    SequencePreempted,
    StepCompleted,
)
from worker.link.frames import encode_frame
from worker.link.orders import CancelSequence, Order, PrefetchPrefix, SubmitSequence
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.scheduler import RequestScheduler
from worker.streams.outgoing import OutgoingBatch
from worker.streams.replay import Replay

_UNSENDABLE = {"x": 10**30}
"""No frame carries a number of more than 64 bits."""


class _EncodingEngine(RecordingEngine):
    """It keeps the orders that can be sent."""

    def send(self, order: Order) -> None:
        encode_frame(order)
        super().send(order)


class _Worker:
    """A scheduler with an engine that decodes `rows` sequences at once."""

    def __init__(self, folder: Path, *, rows: int) -> None:
        settings = ClusterSettings.model_validate(
            {
                "skills": {"chat": [TINY]},
                "models": {TINY: {"path": str(folder)}},
                "worker": {"continuous_batching": {"max_batch_size": rows}},
            }
        )
        self.outgoing: list[OutgoingBatch] = []
        self.engine = _EncodingEngine()
        store = new_store()
        kept = LocalPrefixIndex(MAC, BootId("b"), store)
        self.isolation = FailureIsolation()
        self.scheduler = RequestScheduler(
            MAC, settings, [self.engine], self._put, store, kept, self.isolation
        )
        model = self.scheduler.models.catalogue[TINY]
        model.state, model.folder = "warm", folder
        model.placed.add(0)
        model.engines.add(0)

    def _put(self, outgoing: OutgoingBatch | Replay) -> None:
        assert isinstance(outgoing, OutgoingBatch)
        self.outgoing.append(outgoing)

    def accept(
        self, request_id: str, *, values: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        dispatch = dispatched(request_id, **fields)
        if values is not None:
            body = dispatch.request.model_copy(update={"chat_template_kwargs": values})
            dispatch = dispatch.model_copy(update={"request": body})
        assert self.scheduler.accept(dispatch, OWNER) is None

    def find(self, request_id: str) -> ActiveRequest:
        request = self.scheduler.find((CLIENT, dispatched(request_id).request_id))
        assert request is not None
        return request

    def tell(self, request_id: str, fact: Callable[[int], Fact]) -> None:
        self.scheduler.on_fact(self.engine, fact(self.find(request_id).choices[0].sequence))

    def finish(self, request_id: str) -> None:
        self.tell(request_id, lambda n: StepCompleted([SequenceOutput(n, 0, [7], "x", "stop")]))

    def end(self, request_id: str) -> str:
        """The code with which it ended, as its leader and its client were told, once."""
        events = [e for one in self.outgoing for _, e in one.events if isinstance(e, AttemptFailed)]
        told = [event for event in events if event.request_id == request_id]
        assert [event.terminal_sent for event in told] == [True]
        messages = [each.message for one in self.outgoing for each in one.client_messages]
        ends = [m for m in messages if isinstance(m, FailedMessage) and m.request_id == request_id]
        assert [each.error.code for each in ends] == [told[0].code]
        return told[0].code

    def serves(self, request_id: str) -> None:
        """One more request is served from its acceptance to its end."""
        self.accept(request_id)
        self.tell(request_id, lambda n: PrefillStarted(n, 5))
        self.finish(request_id)
        assert isinstance(self.find(request_id).end, DoneMessage)

    @property
    def submitted(self) -> list[int]:
        orders = self.engine.orders
        sent = [order.sequence for order in orders if isinstance(order, SubmitSequence)]
        gone = [order.sequence for order in orders if isinstance(order, CancelSequence)]
        return [each for each in sent if each not in gone]


@pytest.fixture
def wide(tmp_path: Path) -> _Worker:
    return _Worker(tmp_path, rows=8)


@pytest.fixture
def narrow(tmp_path: Path) -> _Worker:
    return _Worker(tmp_path, rows=1)


def test_what_no_engine_can_be_sent_fails_alone_when_it_is_admitted_at_once(wide: _Worker) -> None:
    wide.accept("bad", values=_UNSENDABLE)
    assert wide.end("bad") == "request_failed"
    assert wide.scheduler.idle
    wide.serves("good")


def test_it_fails_alone_when_it_waits_first(narrow: _Worker) -> None:
    """Behind more than an engine prefetches for: it fails when its turn comes."""
    busy = [f"busy-{number}" for number in range(6)]
    for name in busy:
        narrow.accept(name)
    narrow.accept("bad", values=_UNSENDABLE)
    assert narrow.find("bad").end is None
    narrow.accept("good")
    for name in busy:
        narrow.finish(name)
    assert narrow.end("bad") == "request_failed"
    narrow.finish("good")
    assert narrow.scheduler.idle


def test_it_fails_alone_when_an_engine_is_to_prefetch_for_it(narrow: _Worker) -> None:
    names: list[str] = []
    while not any(isinstance(order, PrefetchPrefix) for order in narrow.engine.orders):
        names.append(f"good-{len(names)}")
        narrow.accept(names[-1])
    narrow.accept("bad", values=_UNSENDABLE)
    assert narrow.end("bad") == "request_failed"
    for name in names:
        narrow.finish(name)
    assert narrow.scheduler.idle


def test_its_other_choices_are_cancelled_and_no_slot_is_lost(narrow: _Worker) -> None:
    for number in range(10):
        narrow.accept(f"bad-{number}", values=_UNSENDABLE, n=2)
        assert narrow.end(f"bad-{number}") == "request_failed"
    assert narrow.submitted == []
    narrow.serves("good")


def _raise(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("a fault of ours")


_FACTS: dict[str, tuple[str, Callable[[int], Fact]]] = {
    "a token": ("advance", lambda n: StepCompleted([SequenceOutput(n, 0, [7], "x")])),
    "the start of prefill": ("start_choice", lambda n: PrefillStarted(n, 5)),
    "progress": ("advance_prompt", lambda n: PrefillAdvanced(n, 1, 5)),
    "a preemption": ("preempt", SequencePreempted),
    "a status": ("state_message", lambda n: PrefillAdvanced(n, 1, 5)),
}


@pytest.mark.parametrize("what", _FACTS)
def test_a_fault_of_ours_ends_the_request_for_which_it_came(wide: _Worker, what: str) -> None:
    method, fact = _FACTS[what]
    for name in ("before", "bad", "after"):
        wide.accept(name)
    setattr(wide.find("bad"), method, _raise)
    wide.tell("bad", fact)
    wide.scheduler.tick()
    assert wide.end("bad") == "internal_error"
    assert wide.isolation.failures == 1
    for name in ("before", "after"):
        wide.finish(name)
    assert wide.scheduler.idle
    wide.serves("good")


def test_the_others_of_a_step_get_their_tokens(wide: _Worker) -> None:
    names = ["a", "bad", "b"]
    for name in names:
        wide.accept(name)
    wide.find("bad").advance = _raise  # type: ignore[method-assign]
    outputs = [SequenceOutput(wide.find(n).choices[0].sequence, 0, [7], "x") for n in names]
    wide.scheduler.on_fact(wide.engine, StepCompleted(outputs))
    assert [wide.find(name).tokens for name in ("a", "b")] == [1, 1]
    assert wide.end("bad") == "internal_error"


@pytest.mark.parametrize("method", ["state_message", "fail"])
def test_a_fault_at_a_tick_ends_one_request_once_and_the_others_are_served(
    wide: _Worker, method: str
) -> None:
    """Also one whose end fails, too: it is gone, and its slot is free."""
    for name in ("before", "bad", "after"):
        wide.accept(name, timeout_ms=1 if name == "bad" and method == "fail" else 60_000)
    bad = wide.find("bad")
    setattr(bad, method, _raise)
    bad.last_sent_at = bad.times.received_at = -1e9
    for _ in range(3):
        wide.scheduler.tick()
    assert {each.dispatch.request_id for each in wide.scheduler.requests()} == {"before", "after"}
    if method != "fail":
        assert wide.end("bad") in ("internal_error", "deadline_exceeded")
    for name in ("before", "after"):
        wide.finish(name)
    assert wide.scheduler.idle


def test_a_fact_about_nothing_known_changes_nothing(wide: _Worker) -> None:
    wide.accept("a")
    broken = EngineMeasured(0, 0, 0, 0, 0, 0, 0.0)
    for fact in (StepCompleted([SequenceOutput(999, 0, [7], "x")]), broken):
        wide.scheduler.on_fact(wide.engine, fact)
    wide.finish("a")
    assert wide.isolation.failures == 0


def test_each_place_is_logged_once_with_its_traceback(
    wide: _Worker, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        wide.accept(f"bad-{number}")
        wide.find(f"bad-{number}").advance = _raise  # type: ignore[method-assign]
        wide.tell(f"bad-{number}", lambda n: StepCompleted([SequenceOutput(n, 0, [7], "x")]))
    lines = [each for each in caplog.records if "a fault of ours" in each.getMessage()]
    unexpected = [each for each in lines if each.getMessage().startswith("unexpected error")]
    assert [each.exc_info is not None for each in unexpected] == [True, False, False]
    assert wide.isolation.failures == 3
