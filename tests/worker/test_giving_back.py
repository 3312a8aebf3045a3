"""What a worker gives back to the owner, and what it ends itself: values in, messages out."""

from pathlib import Path

import pytest

from shared.ids import BootId, ClientName
from shared.messages.dispatch import Continuation
from shared.messages.request_events import AttemptFailed
from shared.messages.stream import ErrorDetails, FailedMessage
from shared.output_history import MAX_BYTES
from shared.settings import ClusterSettings
from tests.worker.engine_owner import EngineOwner
from tests.worker.recording_engine import RecordingEngine
from tests.worker.sessions.stores import new_store
from tests.worker.values import CLIENT, MAC, OWNER, TINY, dispatched
from tests.worker.virtual_time import Clock
from worker.engine_process.exit import UnexpectedEngineExit
from worker.link.activity import EngineActivity, Phase
from worker.link.facts import PrefillStarted, SequenceOutput, StepCompleted
from worker.models.worker_models import WorkerModel
from worker.requests.isolation import FailureIsolation
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.scheduler import RequestScheduler
from worker.streams.outgoing import OutgoingBatch
from worker.streams.replay import Replay

_EVE = ClientName("eve")
_CRASH = ErrorDetails.of("engine_crashed", "the engine ended")


class Scheduled:
    """A scheduler with an engine that runs, as far as it knows, and holds the model."""

    def __init__(self, folder: Path, *, batch: int = 8, max_wait_ms: int | None = None) -> None:
        settings = ClusterSettings.model_validate(
            {
                "skills": {"chat": [TINY]},
                "models": {TINY: {"path": str(folder)}},
                "worker": {
                    "continuous_batching": {"max_batch_size": batch},
                    "request_queue": {"max_wait_ms": max_wait_ms},
                },
            }
        )
        self.outgoing: list[OutgoingBatch] = []
        self._clients: dict[str, ClientName] = {}
        self.engine = EngineOwner(chunk_tokens=512, retry_after_failure_s=1).process
        self.engine.state = "running"
        self.engines = [self.engine]
        store = new_store()
        kept = LocalPrefixIndex(MAC, BootId("b"), store)
        self.scheduler = RequestScheduler(
            MAC, settings, self.engines, self._put, store, kept, FailureIsolation()
        )
        model = self.scheduler.models.catalogue[TINY]
        model.state, model.folder = "warm", folder
        model.placed.add(self.engine.index)
        model.engines.add(self.engine.index)

    def _put(self, outgoing: OutgoingBatch | Replay) -> None:
        if isinstance(outgoing, OutgoingBatch):
            self.outgoing.append(outgoing)

    def accept(self, *request_ids: str, **fields: object) -> None:
        """Take them; the engine starts their prefill as far as it has room."""
        for request_id in request_ids:
            dispatch = dispatched(request_id, **fields)  # type: ignore[arg-type]
            self._clients[request_id] = dispatch.client
            assert self.scheduler.accept(dispatch, OWNER) is None
            for sequence in self._sequences(request_id):
                self.scheduler.on_fact(self.engine, PrefillStarted(sequence, 5))

    def generate(self, request_id: str, index: int = 0, token_id: int = 7) -> None:
        """One token."""
        (sequence,) = self._sequences(request_id)
        output = SequenceOutput(sequence, index, [token_id], "x")
        self.scheduler.on_fact(self.engine, StepCompleted([output]))

    def finish(self, request_id: str, *, published: bool = True) -> None:
        """Its only token, and its end, which its client is told or is about to be told."""
        (sequence,) = self._sequences(request_id)
        output = SequenceOutput(sequence, 0, [7], "x", "stop")
        self.scheduler.on_fact(self.engine, StepCompleted([output]))
        for message in self.outgoing[-1].client_messages:
            message.request.end_published = published

    def die(self, *, for_good: bool = False) -> None:
        self.engine.state = "failed" if for_good else "restarting"
        self.outgoing.clear()
        self.scheduler.on_engine_lost(self.engine, _CRASH)

    def crash(self, *request_ids: str, phase: Phase = "step") -> bool:
        """The engine dies over these requests; whether anybody is to blame."""
        numbers = [number for each in request_ids for number in self._sequences(each)]
        return self._die_over(EngineActivity(phase, TINY, tuple(numbers)))

    def _die_over(self, work: EngineActivity) -> bool:
        self.engine.state = "restarting"
        self.outgoing.clear()
        end = UnexpectedEngineExit("crash", "signal 6", work)
        explained = self.scheduler.explain_end(self.engine, end)
        self.scheduler.on_engine_lost(self.engine, _CRASH)
        return explained

    def come_back(self) -> None:
        """The engine runs again, and holds the model."""
        self.engine.state = "running"
        model = self.model
        model.state = "warm"
        model.engines.add(self.engine.index)
        self.scheduler.tick()

    @property
    def model(self) -> WorkerModel:
        return self.scheduler.models.catalogue[TINY]

    @property
    def in_engine(self) -> list[str]:
        """The requests that were admitted."""
        there = [each for each in self.scheduler.requests() if each.engine is not None]
        return [each.dispatch.request_id for each in there]

    @property
    def requeued(self) -> dict[str, bool]:
        """The requests that went back to their owner, and nothing else was told to anybody; of
        each whether it is suspected."""
        events = [event for one in self.outgoing for _, event in one.events]
        failed = [event for event in events if isinstance(event, AttemptFailed)]
        assert len(failed) == len(events) == len({event.request_id for event in failed})
        assert all((event.code, event.client) == ("engine_crashed", CLIENT) for event in failed)
        assert not any(event.terminal_sent for event in failed)
        assert [
            client_message for one in self.outgoing for client_message in one.client_messages
        ] == []
        return {event.request_id: event.suspect for event in failed}

    def _sequences(self, request_id: str) -> list[int]:
        client = self._clients.get(request_id, CLIENT)
        request = self.scheduler.find((client, dispatched(request_id).request_id))
        assert request is not None
        admitted = request.engine is not None
        return [choice.sequence for choice in request.choices] if admitted else []


def test_an_attempt_that_is_dropped_twice_leaves_the_later_one_in_peace(tiny_model: Path) -> None:
    """Its last words may still wait when the worker, back after a cut, learns that they are not its
    own any more."""
    worker = Scheduled(tiny_model)
    worker.accept("r")
    before = worker.scheduler.find((CLIENT, dispatched("r").request_id))
    assert before is not None
    assert worker.scheduler.accept(dispatched("r", attempt=1), OWNER) is None
    worker.scheduler.drop(before)
    now = worker.scheduler.find((CLIENT, dispatched("r").request_id))
    assert now is not None and now.dispatch.attempt == 1
    worker.scheduler.drop(now)
    assert worker.scheduler.idle


@pytest.mark.parametrize("stream", [True, False])
def test_when_its_engine_ends_what_was_started_and_what_was_not_goes_back(
    tiny_model: Path, stream: bool
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("started", "not started", stream=stream)
    worker.generate("started")
    worker.die()
    assert worker.requeued == {"started": False, "not started": True}
    assert worker.scheduler.idle


def test_where_all_had_generated_each_may_be_why_the_engine_ended(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("one", "another")
    worker.generate("one")
    worker.generate("another")
    worker.die()
    assert worker.requeued == {"one": True, "another": True}


def test_what_goes_on_here_is_suspected_until_it_has_generated_here(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("goes on", goes_on=Continuation(token_ids={0: [5, 6]}))
    worker.accept("started")
    worker.generate("goes on", 0, 5)
    worker.generate("goes on", 1, 6)
    worker.generate("started")
    worker.die()
    assert worker.requeued == {"goes on": True, "started": False}


def test_what_waits_goes_on_waiting_for_the_next_engine(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model, batch=1)
    worker.accept("admitted", "waiting")
    worker.die()
    assert worker.requeued == {"admitted": True}
    assert len(worker.scheduler.admission) == 1


def test_what_waits_goes_back_when_no_engine_will_come(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model, batch=1)
    worker.accept("admitted", "waiting")
    worker.generate("admitted")
    worker.die(for_good=True)
    assert worker.requeued == {"admitted": True, "waiting": False}
    assert worker.scheduler.idle


def test_what_waits_goes_back_when_no_engine_will_come_that_holds_its_model(
    tiny_model: Path,
) -> None:
    """Another one runs, and was never told to load it."""
    worker = Scheduled(tiny_model, batch=1)
    worker.engines.append(RecordingEngine(1))
    worker.accept("admitted", "waiting")
    worker.generate("admitted")
    worker.die(for_good=True)
    assert worker.requeued == {"admitted": True, "waiting": False}
    assert worker.scheduler.idle


@pytest.mark.parametrize("request_id", ["started", "not started"])
def test_what_was_given_back_is_forgotten(tiny_model: Path, request_id: str) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("started", "not started")
    worker.generate("started")
    worker.die()
    assert worker.scheduler.find((CLIENT, dispatched(request_id).request_id)) is None


def test_shutting_down_gives_back_what_waits_and_what_runs(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model, batch=2)
    worker.accept("started", "not started", "waiting")
    worker.generate("started")
    worker.outgoing.clear()
    worker.scheduler.requeue_all(_CRASH)
    assert worker.requeued == {"started": False, "not started": False, "waiting": False}


def test_who_waited_too_long_goes_back_to_its_owner_and_is_told_when_to_come_again(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    worker = Scheduled(tiny_model, batch=1, max_wait_ms=5000)
    worker.accept("running", "early")
    clock.now += 2
    worker.accept("late")
    clock.now += 3
    worker.outgoing.clear()
    worker.scheduler.tick()
    (event,) = [event for one in worker.outgoing for _, event in one.events]
    assert isinstance(event, AttemptFailed)
    assert (event.request_id, event.code, event.terminal_sent) == ("early", "queue_full", False)
    assert event.message == f"waited 5.0 s without a slot in the queue of {MAC}"
    assert event.retry_after_ms is not None
    assert [r.dispatch.request_id for r in worker.scheduler.requests()] == ["running", "late"]
    assert worker.scheduler.admission.status().levels["medium"].dropped == 1


# Where the engine had written down what it was at.


def test_only_the_requests_that_an_engine_was_busy_with_are_suspected(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("at fault", "beside it")
    assert worker.crash("at fault")
    assert worker.requeued == {"at fault": True, "beside it": False}
    assert worker.model.state == "loading"


def test_a_death_at_the_first_token_of_a_model_makes_no_request_a_suspect(
    tiny_model: Path,
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("beside it")
    assert worker._die_over(EngineActivity("step", TINY, (-1,)))
    assert worker.requeued == {"beside it": False}


def test_a_second_death_over_a_request_of_another_client_fails_the_model_and_makes_no_suspect(
    tiny_model: Path,
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("one")
    worker.crash("one")
    worker.come_back()
    worker.accept("another", client=_EVE)
    assert worker.crash("another")
    assert worker.model.state == "failed"
    assert worker.model.error == "it crashed the engine process twice: signal 6"
    (event,) = [event for one in worker.outgoing for _, event in one.events]
    assert isinstance(event, AttemptFailed)
    assert (event.code, event.suspect) == ("model_unavailable", False)
    assert event.message == f"{TINY}: it crashed the engine process twice: signal 6"
    refusal = worker.scheduler.accept(dispatched("later"), OWNER)
    assert refusal is not None and "signal 6" in refusal.message


def test_a_second_death_over_another_request_of_one_client_has_its_requests_refused(
    tiny_model: Path,
) -> None:
    worker = Scheduled(tiny_model, batch=1)
    worker.accept("one", client=_EVE)
    worker.crash("one")
    worker.come_back()
    worker.accept("another", "waiting", client=_EVE)
    worker.accept("beside it")
    assert worker.crash("another")
    events = [event for one in worker.outgoing for _, event in one.events]
    failed = [event for event in events if isinstance(event, AttemptFailed)]
    assert {(event.request_id, event.code, event.suspect) for event in failed} == {
        ("another", "engine_crashed", True),
        ("beside it", "engine_crashed", False),
        ("waiting", "model_unavailable", False),
    }
    assert worker.model.state == "loading"
    worker.come_back()
    refusal = worker.scheduler.accept(dispatched("later", client=_EVE), OWNER)
    assert refusal is not None and refusal.code == "model_unavailable"
    assert "requests of client eve to tiny crashed" in refusal.message
    assert worker.scheduler.accept(dispatched("later"), OWNER) is None
    worker.scheduler.models.load(TINY)
    assert worker.scheduler.accept(dispatched("later", client=_EVE), OWNER) is None


def test_an_answer_in_one_message_that_no_message_can_have_ends_early(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("large", stream=False)
    worker.accept("stream")
    for request_id in ("large", "stream"):
        (sequence,) = worker._sequences(request_id)
        output = SequenceOutput(sequence, 0, [7], "x" * (MAX_BYTES + 1))
        worker.outgoing.clear()
        worker.scheduler.on_fact(worker.engine, StepCompleted([output]))
        (sent,) = [message for one in worker.outgoing for message in one.client_messages]
        if request_id == "large":
            assert isinstance(sent.message, FailedMessage)
            assert sent.message.error.code == "answer_too_large"
    assert worker.in_engine == ["stream"]


def test_a_second_death_over_the_same_request_leaves_the_model_to_the_others(
    tiny_model: Path,
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("at fault", "beside it")
    worker.crash("at fault", "beside it")
    assert worker.requeued == {"at fault": True, "beside it": True}
    worker.come_back()
    worker.accept("at fault")
    worker.crash("at fault")
    assert worker.requeued == {"at fault": True}
    worker.come_back()
    worker.accept("beside it", "later")
    assert worker.in_engine == ["beside it", "later"]


def test_requests_over_which_an_engine_ended_are_tried_one_at_a_time(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("one", "another")
    worker.crash("one", "another")
    worker.come_back()
    worker.accept("one", "another", "newcomer")
    assert worker.in_engine == ["one", "newcomer"]
    worker.generate("one")
    assert worker.in_engine == ["one", "another", "newcomer"]


def test_a_request_that_ended_an_engine_while_it_waited_goes_back_as_a_suspect(
    tiny_model: Path,
) -> None:
    """An engine prepares the prompts of those that are next."""
    worker = Scheduled(tiny_model, batch=1)
    worker.accept("admitted", "waiting")
    request = worker.scheduler.find((CLIENT, dispatched("waiting").request_id))
    assert request is not None and request.engine is None
    worker._die_over(EngineActivity("prompt", TINY, (request.choices[0].sequence,)))
    assert worker.requeued == {"admitted": False, "waiting": True}


def test_a_death_over_no_model_is_nobodys_fault(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("not started")
    end = UnexpectedEngineExit("crash", "exit status 1: a fault of our own")
    assert not worker.scheduler.explain_end(worker.engine, end)
    worker.die()
    assert worker.requeued == {"not started": True}
    assert worker.scheduler.models.loader.crash_history.count(TINY) == 0
