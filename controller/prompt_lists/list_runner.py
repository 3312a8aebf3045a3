"""Lists of prompts, and more choices than a worker decodes at once: served in parts, each a request
of its own by whichever worker suits it, and told to the client as one stream.

The runner is a client of the leader in whose process it is: it submits single requests, which are
routed, retried and ended like all others, and their streams come to an inbox of its own. Ids of
parts are derived from the request, so that one that is published again finds its parts where they
are.
"""

import hashlib
import logging
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from controller.requests.events import Event, Finish, ListEnded, Published, Queried
from controller.requests.instructions import SendToListRunner
from controller.requests.request import ClientRequest, RequestKey
from controller.requests.store import KEPT_AFTER_END_S
from controller.routing import TEMPORARY
from shared.bus import BusMessage
from shared.client.assembler import Assembler
from shared.client.recovery import Recovery, StreamState
from shared.clock import awake_or_asleep
from shared.errors import ClusterError, DecodeError
from shared.ids import RequestId
from shared.inboxes import PROBE_INTERVAL_S, Inboxes
from shared.messages.dispatch import choice_seed
from shared.messages.stream import (
    KEEP_ALIVE_S,
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    FinishReason,
    Status,
    StatusName,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
    decode,
    encode,
    encode_multiplexed,
)
from shared.stream_log import MAX_BYTES, StreamLog

logger = logging.getLogger(__name__)

MOST_SEEKING = 16
"""So many parts of a list look for a worker at a time, so that a list does not fill the waiting
room."""

TICK_S = 0.25
_COUNT_CAPACITY_S = 1.0
_MOST_LOST = 3
_UNKNOWN_RETRY_MS = 1000
_LONGEST_RETRY_MS = 2000
_MOST_TOGETHER = 128
_FORGIVING_S = 3.0
"""So long after a new connection a 503 says nothing: clients reconnect too."""

_FATAL = frozenset({"invalid_request", "not_supported"})
"""Codes of what is wrong with the whole request."""

_PROGRESS: tuple[StatusName | None, ...] = (
    None, "accepted", "queued", "loading", "preempted", "migrating", "prefill", "running"
)  # fmt: skip


@dataclass(slots=True, eq=False)
class _Part:
    """Some choices of one prompt, as a request of its own.

    Attributes:
        first: the number of its first choice in the whole.
        tries: how often it was submitted in vain.
        lost: of those, as its worker took the leader for gone.
        request: while it is on its way or with a worker; None before, and after a rejection.
        answered: its answers are all there, or failed.
    """

    number: int
    prompt: int
    first: int
    choices: int
    tries: int = 0
    lost: int = 0
    request: ClientRequest | None = None
    assembler: Assembler | None = None
    recovery: Recovery | None = None
    answered: bool = False
    error: StreamError | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    route: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _List:
    """
    Attributes:
        waiting: numbers of the parts that are yet to go.
        rejected: why the last one came back; None where none did since another one ended.
        not_before: none goes before.
        capacity: batch slots of the workers that could serve it, as counted last at `counted_at`.
        begun: a worker accepted one of its parts.
        next_index: of each choice.
    """

    whole: ClientRequest
    streams: bool
    multiplex: bool
    parts: list[_Part]
    inboxes: Inboxes
    log: StreamLog
    waiting: list[int]
    rejected: StreamError | None = None
    not_before: float = 0.0
    capacity: int = 0
    counted_at: float = float("-inf")
    begun: bool = False
    told_at: float = 0.0
    end: Done | Failed | None = None
    ended_at: float = 0.0
    usage_told: bool = False
    next_index: list[int] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)

    @property
    def origin(self) -> tuple[RequestId, int, None]:
        return self.whole.request_id, self.whole.attempt, None

    @property
    def open(self) -> list[_Part]:
        """The parts that are on their way, or with a worker."""
        return [part for part in self.parts if part.request is not None]


class PromptListRunner:
    """Serves lists for a leader.

    Args:
        submit: have the leader take an event in.
        find: what the leader knows of a request.
        capacity: batch slots of the workers that could serve a request, and how many one of them
            has at most.
        put: publish to a subject, with a reply subject.
        inbox: of the runner; streams come to `<inbox>.parts`, and `<inbox>.probe.<inbox of a
            client>` is where it hears that nobody listens there.
        connections: how often a connection was made.
    """

    def __init__(
        self,
        submit: Callable[[Event], None],
        find: Callable[[RequestKey], ClientRequest | None],
        capacity: Callable[[ClientRequest], tuple[int, int]],
        put: Callable[[str, bytes, str], None],
        inbox: str,
        max_bytes: int,
        connections: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._find = find
        self._capacity = capacity
        self._put = put
        self._inbox = f"{inbox}.parts"
        self._probes = f"{inbox}.probe"
        self._max_bytes = max_bytes
        self._connections = connections
        self._connection = connections()
        self._forgiving_until = 0.0
        self._lists: dict[RequestKey, _List] = {}
        self._parts: dict[RequestId, tuple[_List, _Part]] = {}
        self._outgoing: list[tuple[_List, StreamMessage, tuple[str, ...]]] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done in time."""
        return not self._lists

    # What the leader says.

    def take(self, order: SendToListRunner) -> None:
        whole = order.request
        match order.verb:
            case "serve":
                self._serve(whole)
            case "attach":
                self._attach(whole, order.inbox)
            case "cancel":
                self._cancel(whole)
            case "fail":
                assert order.error is not None
                self._fail_whole(whole, order.error)

    def _serve(self, whole: ClientRequest) -> None:
        """Have the parts of a request served."""
        body = whole.contents
        _, most = self._capacity(whole)
        size = min(body.n, max(1, most))
        parts: list[_Part] = []
        for first in (
            prompt * body.n + offset
            for prompt in range(max(1, len(body.prompts)))
            for offset in range(0, body.n, size)
        ):
            choices = min(size, body.n - first % body.n)
            parts.append(_Part(len(parts), first // body.n, first, choices))
        self._lists[whole.key] = one = _List(
            whole,
            body.stream,
            body.multiplex,
            parts,
            Inboxes(whole.inboxes, awake_or_asleep()),
            StreamLog(body.choices, max_bytes=MAX_BYTES if body.stream else None),
            [part.number for part in parts],
            told_at=time.monotonic(),
            next_index=[0] * body.choices,
            unfinished=set(range(body.choices)),
        )
        self._advance(one)
        self._flush()

    def _attach(self, whole: ClientRequest, inbox: str) -> None:
        """Say to one more inbox what was said, and what follows."""
        if (one := self._lists.get(whole.key)) is None:
            return
        if one.streams:
            if one.begun:
                self._outgoing.append((one, _accepted(one), (inbox,)))
            for output in one.log.since(None, 0):
                self._outgoing.append((one, Chunk(*one.origin, output), (inbox,)))
        if one.end is not None:
            self._outgoing.append((one, one.end, (inbox,)))
        else:
            one.inboxes.add(inbox, awake_or_asleep())
        self._flush()

    def _cancel(self, whole: ClientRequest) -> None:
        """End a list as its client asked: what was done stays."""
        if (one := self._lists.get(whole.key)) is None or one.end is not None:
            return
        self._drop_waiting(one, "cancelled")
        for part in one.open:
            assert part.request is not None
            self._submit(Queried(part.request.key, "", cancel=True, of_part=True))
        self._end_if_over(one)
        self._flush()

    def _fail_whole(self, whole: ClientRequest, error: StreamError) -> None:
        """End a list, and all that is done for it."""
        if (one := self._lists.get(whole.key)) is not None and one.end is None:
            self._end(one, self._failed(one, error))

    def tick(self) -> None:
        """Deadlines, silence, keep-alive; call it a few times a second."""
        now = time.monotonic()
        for key, one in list(self._lists.items()):
            if one.end is not None:
                if now - one.ended_at > KEPT_AFTER_END_S:
                    del self._lists[key]
                continue
            if now >= one.whole.deadline:
                message = f"timeout_ms of {one.whole.contents.timeout_ms} passed while queued"
                error = StreamError.of("deadline_exceeded", message)
                self._drop_waiting(one, "error", error)
            for part in one.open:
                self._recover(one, part, now)
            self._end_if_over(one)
            self._advance(one)
            interval_s = PROBE_INTERVAL_S if one.inboxes.doubtful else KEEP_ALIVE_S
            if one.end is None and now - one.told_at >= interval_s:
                self._say(one, [_status(one)])
        self._flush()

    def on_message(self, message: BusMessage) -> None:
        """What came to the runner's inboxes."""
        if message.subject.startswith(f"{self._probes}."):
            if message.no_responders:
                self._on_missed(message.subject.removeprefix(f"{self._probes}."))
            return
        try:
            messages = decode(message.payload)
        except DecodeError as error:
            logger.error("a message about a part of a list cannot be read: %s", error.message)
            return
        heard: dict[_List, None] = {}
        for each in messages:
            one, part = self._parts.get(each.request_id or RequestId(""), (None, None))
            if one is not None and part is not None and part.request is not None:
                known = self._find(part.request.key)
                if known is None or each.attempt >= known.attempt:
                    heard[one] = None
                    self._hear(one, part, each)
        for one in heard:
            self._end_if_over(one)
            self._advance(one)
        self._flush()

    # Parts on their way.

    def _advance(self, one: _List) -> None:
        """Have as many parts go as may: in order, and not all at once."""
        now = time.monotonic()
        if one.waiting and now - one.counted_at >= _COUNT_CAPACITY_S:
            one.capacity, one.counted_at = self._capacity(one.whole)[0], now
        while one.end is None and one.waiting and now >= one.not_before:
            served = one.open
            if any(map(self._is_served, served)):
                self._begin(one)
            if one.rejected is not None and not one.begun:
                return  # where not one finds a worker, the list is rejected
            seeking = sum(not self._is_served(part) for part in served)
            taken = sum(part.choices for part in served)
            part = one.parts[one.waiting[0]]
            if seeking >= MOST_SEEKING or (served and taken + part.choices > one.capacity):
                return
            one.waiting.pop(0)
            self._send(one, part)

    def _send(self, one: _List, part: _Part) -> None:
        now = time.monotonic()
        part.request = request = _request_of(one.whole, part, self._inbox, now)
        part.assembler = Assembler(request.request_id, choices=part.choices)
        part.recovery = Recovery(now, self._connections())
        self._parts[request.request_id] = one, part
        self._submit(Published(request))

    def _recover(self, one: _List, part: _Part, now: float) -> None:
        """Ask for what is missing of a part's stream."""
        request, assembler, recovery = part.request, part.assembler, part.recovery
        if one.end is not None or request is None:
            return  # since the last one was looked after
        assert assembler is not None and recovery is not None
        known = self._find(request.key) or request
        situation = StreamState(
            connected=True,
            connections=self._connections(),
            heard=assembler.heard,
            started=assembler.started,
            worker_known=known.worker is not None,
            missing=assembler.missing_from is not None,
        )
        try:
            step = recovery.next_step(now, situation)
        except ClusterError as error:
            self._fail(one, part, StreamError.from_exception(error))
            self._submit(Finish(request.key, StreamError.from_exception(error)))
            return
        if step == "ask_status":
            recovery.on_state(known.wire_state, known.worker is not None, now)
        elif step is not None:  # the same again: it is told from the start, or runs again
            self._submit(Published(_request_of(one.whole, part, self._inbox, now)))

    def _hear(self, one: _List, part: _Part, message: StreamMessage) -> None:
        assert part.assembler is not None and part.recovery is not None
        part.recovery.on_message(time.monotonic())
        if isinstance(message, Failed):
            part.route = message.route or part.route
            self._fail(one, part, message.error)
            return
        if message.worker is not None:
            self._begin(one)
        try:
            outputs = part.assembler.take(message)
        except ClusterError as error:
            request = part.request
            self._fail(one, part, StreamError.from_exception(error))
            if request is not None:
                self._submit(Finish(request.key, StreamError.from_exception(error)))
            return
        part.usage = part.assembler.usage
        for output in outputs:
            numbered = replace(output, choice=part.first + output.choice)
            if _is_new(one, numbered):
                self._say(one, [self._chunk(one, numbered, part.usage)])
        if part.assembler.done:
            part.answered, part.timings = True, part.assembler.timings
            part.route, part.warnings = part.assembler.route, part.assembler.warnings
            self._close(one, part)

    def _is_served(self, part: _Part) -> bool:
        """Whether a worker has it, or had."""
        if part.request is None:
            return False
        known = self._find(part.request.key) or part.request
        return known.state == "running" or (known.ended and known.ended_well)

    def _begin(self, one: _List) -> None:
        """A worker accepted one of its parts."""
        if not one.begun:
            one.begun = True
            self._say(one, [_accepted(one)])

    def _close(self, one: _List, part: _Part) -> None:
        """What still comes for it does not count; others may go."""
        if part.request is not None:
            self._parts.pop(part.request.request_id, None)
            part.request = None
        one.rejected, one.not_before = None, 0.0

    def _fail(self, one: _List, part: _Part, error: StreamError) -> None:
        """A part failed, and no worker has it any more."""
        now = time.monotonic()
        began = any(one.next_index[number] for number in _numbers(part))
        lost = error.code == "client_gone" and part.lost < _MOST_LOST  # that was not the client
        part.lost += lost
        part.tries += 1
        self._close(one, part)
        if one.end is not None:
            return
        if error.code in _FATAL:
            self._end(one, self._failed(one, _of_prompt(one, part, error)))
            return
        again = lost or (error.code in TEMPORARY and not began)
        if again and not one.whole.cancelled and now < one.whole.deadline:
            insort(one.waiting, part.number)
            one.rejected = None if lost else error
            retry_ms = min(error.retry_after_ms or _UNKNOWN_RETRY_MS, _LONGEST_RETRY_MS)
            one.not_before = now + retry_ms / 1000
            if not lost and not one.open and not one.begun:
                self._end(one, self._failed(one, error))
            return
        if error.code == "client_gone":
            error = StreamError.of("stream_broken", "its worker lost sight of the controller")
        logger.warning(
            "part %d failed: %s", part.number, error.message,
            extra={"request_id": one.whole.request_id, "code": error.code},
        )  # fmt: skip
        part.error = _of_prompt(one, part, error)
        self._finish(one, part, "error", part.error)

    def _drop_waiting(
        self, one: _List, reason: FinishReason, error: StreamError | None = None
    ) -> None:
        """None goes any more of those that have not gone."""
        numbers, one.waiting = one.waiting, []
        for part in (one.parts[number] for number in numbers):
            part.error = _of_prompt(one, part, error) if error is not None else None
            self._finish(one, part, reason, part.error)

    def _finish(
        self, one: _List, part: _Part, reason: FinishReason, error: StreamError | None
    ) -> None:
        """The last word of each of its choices that has not ended."""
        part.answered = True
        for number in _numbers(part):
            if number in one.unfinished:
                index = one.next_index[number]
                output = ChoiceOutput(number, index, [], "", finish_reason=reason, error=error)
                self._say(one, [self._chunk(one, output, None)])

    # Towards the client.

    def _chunk(self, one: _List, output: ChoiceOutput, usage: Usage | None) -> Chunk:
        one.log.append(output)
        one.next_index[output.choice] = output.index + len(output.token_ids)
        if output.finish_reason is not None:
            one.unfinished.discard(output.choice)
        one.whole.told_tokens += len(output.token_ids)
        told, one.usage_told = one.usage_told, one.usage_told or usage is not None
        first = replace(usage, completion_tokens=0) if usage is not None and not told else None
        return Chunk(*one.origin, output, first)

    def _end_if_over(self, one: _List) -> None:
        if one.end is not None or not all(part.answered for part in one.parts):
            return
        if all(part.error is not None for part in one.parts):
            assert one.parts[0].error is not None
            self._end(one, self._failed(one, one.parts[0].error))
            return
        usages = _usage_by_prompt(one)
        usage = Usage(
            sum(each.prompt_tokens for each in usages),
            sum(each.cached_tokens for each in usages),
            sum(one.next_index),
            sum(part.usage.reasoning_tokens for part in one.parts if part.usage is not None),
        )
        outputs = () if one.streams else one.log.joined()
        warnings = tuple(dict.fromkeys(told for part in one.parts for told in part.warnings))
        self._end(one, Done(*one.origin, usage, _timings(one), outputs, _route(one), warnings))

    def _failed(self, one: _List, error: StreamError) -> Failed:
        return Failed(*one.origin, error, _route(one))

    def _end(self, one: _List, end: Done | Failed) -> None:
        if isinstance(end, Done) and len(payload := encode(end)) > self._max_bytes:
            message = f"the answer has {len(payload)} bytes, more than one message may have"
            end = self._failed(one, StreamError.of("answer_too_large", message))
        one.end, one.ended_at, one.waiting = end, time.monotonic(), []
        self._outgoing.append((one, end, tuple(one.inboxes)))
        self._flush()
        for part in one.open:
            request = part.request
            self._close(one, part)
            if request is not None and isinstance(end, Failed):
                self._submit(Finish(request.key, end.error))
        self._submit(ListEnded(one.whole.key, end))

    def _say(self, one: _List, messages: Iterable[StreamMessage]) -> None:
        """What comes before the end, to all who listen."""
        one.told_at = time.monotonic()
        if one.streams:
            self._outgoing += [(one, message, tuple(one.inboxes)) for message in messages]

    def _flush(self) -> None:
        """Publish what there is to say: as one message to each inbox that is multiplexed."""
        outgoing, self._outgoing = self._outgoing, []
        together: defaultdict[str, list[tuple[_List, StreamMessage]]] = defaultdict(list)
        for one, message, inboxes in outgoing:
            for inbox in inboxes:
                if one.multiplex:
                    together[inbox].append((one, message))
                else:
                    self._put(inbox, encode(message), self._probe(inbox, [(one, message)]))
        for inbox, said in together.items():
            for begin in range(0, len(said), _MOST_TOGETHER):
                some = said[begin : begin + _MOST_TOGETHER]
                payload = encode_multiplexed([message for _, message in some])
                if len(payload) <= self._max_bytes:
                    self._put(inbox, payload, self._probe(inbox, some))
                    continue
                for each in some:
                    payload = encode(each[1], multiplex=True)
                    self._put(inbox, payload, self._probe(inbox, [each]))

    def _probe(self, inbox: str, said: Iterable[tuple[_List, StreamMessage]]) -> str:
        """A reply subject that tells whether somebody listens, when it is time for that."""
        now = awake_or_asleep()
        due = [
            one.inboxes.should_probe(inbox, now)
            for one, message in said
            if one.streams and not isinstance(message, Done | Failed)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""

    def _on_missed(self, inbox: str) -> None:
        """Nobody listens to an inbox: end the lists that nobody else listens to."""
        now = awake_or_asleep()
        if self._connections() != self._connection:
            self._connection = self._connections()
            self._forgiving_until = now + _FORGIVING_S
        if now <= self._forgiving_until:
            return
        for one in list(self._lists.values()):
            one.inboxes.on_missed(inbox, now)
            if not one.inboxes and one.end is None:
                message = "nobody listened to the stream any more"
                self._end(one, self._failed(one, StreamError.of("client_gone", message)))


def part_id(key: RequestKey, choices: range, tries: int = 0) -> RequestId:
    """Of a part with these choices of the whole: the same whoever serves the list in such parts."""
    client, request_id = key
    named = f"{client}\0{request_id}\0{choices.start}\0{choices.stop}\0{tries}".encode()
    return RequestId(f"part-{hashlib.blake2b(named, digest_size=12).hexdigest()}")


def first_part(whole: ClientRequest, now: float) -> ClientRequest:
    """The first prompt of a list alone."""
    return _request_of(whole, _Part(0, 0, 0, whole.contents.n), "", now)


def _request_of(whole: ClientRequest, part: _Part, inbox: str, now: float) -> ClientRequest:
    """The request for one part. Its answers are those that the whole would get from one worker. It
    is no turn of a session: parts do not wait for one another."""
    body = whole.contents
    alone: dict[str, Any] = {
        "n": part.choices, "stream": True, "multiplex": True,
        "request_id": None, "session_id": None, "affinity": None,
    }  # fmt: skip
    if body.prompts:
        alone["prompt"] = body.prompts[part.prompt]
    return ClientRequest.arrived(
        whole.client,
        whole.skill,
        [inbox],
        body.model_copy(update=alone),
        whole.models,
        request_id=part_id(whole.key, _numbers(part), part.tries),
        seed=choice_seed(whole.seed, part.first),
        now=now,
        elapsed_before_ms=whole.elapsed_ms(now),
        part_of=whole.request_id,
    )


def _is_new(one: _List, output: ChoiceOutput) -> bool:
    """Not where it was told by an earlier try."""
    end = output.index + len(output.token_ids)
    ends = output.finish_reason is not None and output.choice in one.unfinished
    return end > one.next_index[output.choice] or ends


def _numbers(part: _Part) -> range:
    return range(part.first, part.first + part.choices)


def _accepted(one: _List) -> Status:
    return Status(*one.origin, "accepted", seed=one.whole.seed)


def _of_prompt(one: _List, part: _Part, error: StreamError) -> StreamError:
    """The error of one prompt, saying which, unless it is about another field."""
    if error.param not in (None, "prompt") or len(one.whole.contents.prompts) < 2:
        return error
    text = error.message.removeprefix("prompt: ")
    return replace(error, message=f"prompt.{part.prompt}: {text}")


def _usage_by_prompt(one: _List) -> list[Usage]:
    """Each prompt counts once."""
    usages: dict[int, Usage] = {}
    for part in one.parts:
        if part.usage is not None:
            usages.setdefault(part.prompt, part.usage)
    return list(usages.values())


def _timings(one: _List) -> Timings:
    """Those of the part whose first token came first, and the time from there to the end."""
    elapsed_ms = round(one.whole.elapsed_ms(time.monotonic()), 2)
    never = Timings(elapsed_ms, 0.0, elapsed_ms, 0.0)
    known = [part.timings for part in one.parts if part.timings is not None]
    first = min(known, key=lambda timings: timings.ttft_ms, default=never)
    return replace(first, decode_ms=round(max(0.0, elapsed_ms - first.ttft_ms), 2))


def _route(one: _List) -> dict[str, Any] | None:
    """Of the first part that has one."""
    return next((part.route for part in one.parts if part.route is not None), None)


def _status(one: _List) -> Status:
    """How its farthest part stands."""
    if any(one.next_index):
        return Status(*one.origin, "running")
    known = [part.assembler for part in one.open if part.assembler is not None]
    first = max(known, key=lambda each: _PROGRESS.index(each.status), default=None)
    if first is None or first.status in (None, "accepted"):
        return Status(*one.origin, "queued")
    return Status(*one.origin, first.status, first.progress)
