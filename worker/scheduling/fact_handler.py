"""What engines report about sequences, applied to requests, sessions and cached prefixes."""

from worker.engine_process.process import EngineProcess
from worker.link import facts
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.requests.table import RequestTable
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.step_result_handler import StepResultHandler
from worker.scheduling.termination import RequestTerminator, rejection_error
from worker.sessions.store import SessionStore
from worker.streams.status_sender import StreamStatusSender

_OfSequence = (
    facts.PrefillStarted
    | facts.PrefixReused
    | facts.PrefillAdvanced
    | facts.SequencePreempted
    | facts.SequenceRejected
)


class FactHandler:
    """Applies facts. The failure of one sequence ends its request alone."""

    def __init__(
        self,
        requests: RequestTable,
        sessions: SessionStore,
        cached_prefixes: LocalPrefixIndex,
        results: StepResultHandler,
        status: StreamStatusSender,
        termination: RequestTerminator,
        isolation: FailureIsolation,
    ) -> None:
        self._requests = requests
        self._sessions = sessions
        self._cached_prefixes = cached_prefixes
        self._results = results
        self._status = status
        self._termination = termination
        self._isolation = isolation

    def handle(self, engine: EngineProcess, fact: facts.Fact) -> None:
        match fact:
            case facts.StepCompleted():
                self._results.publish(engine.index, fact.outputs)
            case facts.SequenceCached():
                if (cached := self._requests.by_first_choice(fact.sequence)) is not None:
                    self._sessions.on_sequence_cached(engine.index, fact, cached)
                    self._cached_prefixes.on_sequence_cached(engine.index, fact, cached)
            case facts.CachedSequencesMeasured():
                self._sessions.on_measured(engine.index, fact.sequences)
                self._cached_prefixes.on_measured(engine.index, fact.sequences)
            case facts.EngineStarted():
                self._sessions.on_engine_started(engine.index)
            case (
                facts.PrefillStarted()
                | facts.PrefixReused()
                | facts.PrefillAdvanced()
                | facts.SequencePreempted()
                | facts.SequenceRejected()
            ):
                if entry := self._requests.of_sequence(fact.sequence):
                    with self._isolation.of(entry[0], "the progress of a sequence"):
                        self._handle_sequence(fact, *entry)
            case _:
                pass  # the other facts are about models, or for the engine process

    def _handle_sequence(
        self, fact: _OfSequence, request: ActiveRequest, choice: ActiveChoice
    ) -> None:
        match fact:
            case facts.PrefillStarted():
                request.start_choice(choice, fact.prompt_tokens)
            case facts.PrefixReused():
                request.restore_choice(choice, fact.tokens)
            case facts.PrefillAdvanced():
                request.advance_prompt(choice, fact.done, fact.total)
                self._status.send(request)
            case facts.SequencePreempted():
                request.preempt()
                self._status.send(request)
            case facts.SequenceRejected():
                self._termination.fail(request, rejection_error(request, choice, fact))
