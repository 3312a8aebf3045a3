"""A worker that does what it is told and tells the truth, as late as may be."""

from dataclasses import dataclass, field

from controller.requests.instructions import SendControlOrder
from shared.ids import BootId, WorkerId
from shared.messages.control import (
    ClaimedRequest,
    ClaimReport,
    ClaimWorker,
    ControlReply,
    TellContents,
    TellSession,
)
from shared.messages.dispatch import Continuation, Dispatch, DispatchBatch
from tests.controller.requests.claimed import key_of
from tests.controller.requests.driven import LEADER, Driven
from tests.controller.requests.states import HELLO, HI
from tests.controller.requests.wire import Sent

Key = tuple[str, int]
"""The id and attempt of a dispatch."""

_ENDS = {"finish": "finished", "fail": "failed", "requeue": "returned"}


@dataclass(slots=True)
class Had:
    """What a worker has of an attempt."""

    dispatch: Dispatch
    state: str = "running"
    tokens: list[int] = field(default_factory=list)

    def claimed(self) -> ClaimedRequest:
        dispatch = self.dispatch
        counts = {"retries": dispatch.retries, "migrations": dispatch.migrations}
        tokens, crashes = len(self.tokens), dispatch.crashes
        return key_of(dispatch, self.state, tokens=tokens, crashes=crashes, **counts)

    def contents(self) -> Dispatch:
        if not self.tokens:
            return self.dispatch
        resume = Continuation(token_ids={0: self.tokens}, text_sent={0: len(self.tokens)})
        return self.dispatch.model_copy(update={"resume": resume})


@dataclass(slots=True)
class TruthfulBoot:
    """
    Attributes:
        sent, orders: that it has not answered.
        dropped: what it was told to forget.
    """

    name: str
    number: int = 1
    had: dict[Key, Had] = field(default_factory=dict)
    dropped: set[Key] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    orders: list[SendControlOrder] = field(default_factory=list)

    @property
    def id(self) -> BootId:
        return BootId(f"b{self.number}")

    @property
    def running(self) -> list[Had]:
        return [each for each in self.had.values() if each.state == "running"]

    def take(self, dispatch: Dispatch) -> None:
        """What came before the order to drop it is dropped."""
        key = dispatch.request_id, dispatch.attempt
        if key not in self.dropped:
            self.had[key] = Had(dispatch)

    def drop(self, key: Key) -> None:
        self.dropped.add(key)
        self.had.pop(key, None)

    def forget_ended(self) -> None:
        self.had = {key: each for key, each in self.had.items() if each.state == "running"}

    def go_on(self, driven: Driven, had: Had, what: str, code: str = "", *, heard: bool) -> None:
        """With a token, or to an end: `finish`, `fail`, `requeue`."""
        batch = DispatchBatch(owner=LEADER, term=1, dispatches=[had.dispatch])
        sent = Sent(WorkerId(self.name), self.id, 0, batch)
        if what == "token":
            had.tokens.append(len(had.tokens))
            if heard:
                driven.emit(sent, len(had.tokens) - 1, had.tokens[-1])
            return
        had.state = _ENDS[what]
        if heard and what == "finish":
            driven.finish(sent)
        elif heard:
            getattr(driven, what)(sent, code)

    def reply(self, order: SendControlOrder) -> ControlReply:
        reply = ControlReply(worker=WorkerId(self.name), boot_id=self.id, ok=True)
        match order.order:
            case ClaimWorker(term=term):
                requests = [each.claimed() for each in self.had.values()]
                claimed = ClaimReport(term=term or 0, requests=requests)
                return reply.model_copy(update={"claimed": claimed})
            case TellContents(requests=wanted):
                keys = [(each.request_id, each.attempt) for each in wanted]
                told = [self.had[key].contents() for key in keys if key in self.had]
                return reply.model_copy(update={"contents": told})
            case TellSession():
                return reply.model_copy(update={"said": [HELLO, HI]})
        return reply
