"""The session store of a worker: its sessions, their messages, pins and limits."""

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from shared.errors import RequestError
from shared.ids import ClientName, SessionKey
from shared.messages.control import SessionStatus
from shared.messages.conversation import Turn
from shared.settings.kv_cache import SessionRetentionSettings
from worker.link.facts import CachedSequenceMeasurements, SequenceCached
from worker.link.orders import EvictCachedSequence, Order, TrackSequence
from worker.requests.active_request import ActiveRequest
from worker.sessions.files import SessionFiles
from worker.sessions.session import Session

_MAX_MESSAGE_BYTES = 256 * 2**20
_MAX_PINNED_SHARE = 0.5

Send = Callable[[int, Order], None]


class SessionStore:
    """Belongs to the agent.

    Args:
        send: sends an order to an engine.
        pin_limit_bytes: returns the limit of KV memory; pinned sessions may take half of that.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        settings: SessionRetentionSettings,
        files: SessionFiles,
        send: Send,
        *,
        pin_limit_bytes: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._files = files
        self._send = send
        self._pin_limit_bytes = pin_limit_bytes
        self._clock = clock
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()  # LRU
        self._by_end: defaultdict[tuple[int, str], list[Session]] = defaultdict(list)
        self._message_bytes: Counter[ClientName] = Counter()
        self._count: Counter[ClientName] = Counter()
        self._own_bytes: Counter[ClientName] = Counter()
        for session in sorted(files.read(), key=lambda session: session.used_at):
            self._add(session)
        self.tick()

    def configure(self, settings: SessionRetentionSettings) -> None:
        """Apply other limits from the next `tick` on."""
        self._settings = settings

    def __len__(self) -> int:
        return len(self._sessions)

    def cached(self) -> list[Session]:
        """Return the sessions that were cached by an engine once, least recently used first."""
        return [session for session in self._sessions.values() if session.end is not None]

    def turns_by_session(self) -> Iterator[tuple[SessionKey, int]]:
        """Iterate over the sessions whose clients may send only the new messages of a turn, most
        recently used first."""
        for session in reversed(self._sessions.values()):
            if session.said != []:
                yield session.key, session.turns

    # Turns.

    def begin(self, request: ActiveRequest) -> None:
        """Record that a turn was admitted to an engine."""
        if request.session is None or not request.generates:
            return
        assert request.engine is not None
        now = self._clock()
        client, id = request.session
        session = self._sessions.get(request.session)
        if session is None:
            session = Session(client, id, request.model, now, now)
            self._add(session)
        session.active += 1
        session.used_at = now
        self._sessions.move_to_end(session.key)

    def end(self, request: ActiveRequest, *, answered: bool) -> None:
        """Record the end of a turn that was begun; without an answer it does not count."""
        session = self._sessions.get(request.session) if request.session is not None else None
        if session is None or not request.generates or request.engine is None:
            return
        session.active = max(0, session.active - 1)
        session.used_at = self._clock()
        if answered:
            session.model = request.model
            self._message_bytes[session.client] -= session.message_bytes
            session.said = messages_after(request)
            self._message_bytes[session.client] += session.message_bytes
            session.turns = max(session.turns + 1, session.answers)
            self._files.write(session)
            self._enforce_limits(session.client)
        elif session.turns == 0 and session.active == 0:
            self._remove(session, drop=False)

    # Cached sequences.

    def on_sequence_cached(
        self, engine: int, cached: SequenceCached, request: ActiveRequest
    ) -> None:
        """Record the cached sequence of a turn; it replaces that of the turn before."""
        session = self._sessions.get(request.session) if request.session is not None else None
        if session is None or not request.generates:
            return
        if (session.engine, session.end) == (engine, cached.end):
            return
        before = session.engine, session.end
        session.engine, session.end, session.tokens = engine, cached.end, cached.tokens
        self._measure(session, None)
        self._by_end[engine, cached.end].append(session)
        self._release_sequence(session, *before, drop=False)
        if session.pinned:
            self._track(session)
        if session.turns:
            self._files.write(session)

    def on_measured(self, engine: int, sequences: Iterable[CachedSequenceMeasurements]) -> None:
        """Update how much of some sequences is cached."""
        clients = set()
        for measured in sequences:
            for session in self._by_end.get((engine, measured.end), ()):
                self._measure(session, measured)
                clients.add(session.client)
        for client in clients:
            self._enforce_limits(client)

    def on_engine_started(self, engine: int) -> None:
        """Have a new engine process track the sequences that the previous one tracked."""
        for (index, _), sessions in self._by_end.items():
            if index == engine:
                for session in sessions:
                    self._measure(session, None)
                self._track(sessions[0])

    # Queries and orders.

    def listing(self, client: ClientName | None = None) -> list[SessionStatus]:
        """Return all sessions, or those of a client, most recently used first."""
        now = self._clock()
        return [
            session.status(now)
            for session in reversed(self._sessions.values())
            if client in (None, session.client)
        ]

    def status(self, key: SessionKey) -> SessionStatus:
        """Raises RequestError if there is no such session."""
        return self._find(key).status(self._clock())

    def messages(self, key: SessionKey) -> list[Turn] | None:
        """Return all messages of a session; None if it is not here, or not all are known."""
        session = self._sessions.get(key)
        return session.said if session is not None else None

    def forget(self, key: SessionKey, *, drop: bool = True) -> None:
        """Forget a session; with `drop` also the blocks that only its sequence has.

        Raises:
            RequestError: there is no such session.
        """
        self._remove(self._find(key), drop=drop)

    def pin(self, key: SessionKey, *, pinned: bool) -> SessionStatus:
        """Pin or unpin a session. A pinned session and its cached blocks are evicted last.

        Raises:
            RequestError: there is no such session, or pinned sessions would take more than half of
                KV memory.
        """
        session = self._find(key)
        if pinned and not session.pinned:
            held = sum(other.own_bytes for other in self._sessions.values() if other.pinned)
            limit = int(self._pin_limit_bytes() * _MAX_PINNED_SHARE)
            if held + session.own_bytes > limit:
                raise RequestError(
                    f"pinned sessions would take {held + session.own_bytes} bytes; at most "
                    f"{limit}, half of KV memory, may be pinned",
                    code="session_quota",
                )
        session.pinned = pinned
        self._track(session)
        self._files.write(session)
        return session.status(self._clock())

    def tick(self) -> None:
        """Forget sessions that have expired; call it periodically."""
        horizon = self._clock() - self._settings.ttl_s
        expired = takewhile(lambda session: session.used_at < horizon, self._sessions.values())
        for session in list(expired):
            if not (session.pinned or session.active):
                self._remove(session, drop=True)

    def close(self) -> None:
        self._files.close()

    # Internals.

    def _find(self, key: SessionKey) -> Session:
        if (session := self._sessions.get(key)) is None:
            message = f"no session {key[1]!r} of client {key[0]!r} on this worker"
            raise RequestError(message, code="unknown_session")
        return session

    def _add(self, session: Session) -> None:
        self._sessions[session.key] = session
        self._count[session.client] += 1
        self._message_bytes[session.client] += session.message_bytes
        if session.end is not None:
            self._by_end[session.engine, session.end].append(session)

    def _measure(self, session: Session, measured: CachedSequenceMeasurements | None) -> None:
        self._own_bytes[session.client] -= session.own_bytes
        session.measured = measured
        self._own_bytes[session.client] += session.own_bytes

    def _track(self, session: Session) -> None:
        """Have the engine track the sequence of a session. Several sessions may share a sequence;
        it is pinned if one of them is."""
        if session.end is not None:
            others = self._by_end[session.engine, session.end]
            pinned = any(other.pinned for other in others)
            self._send(session.engine, TrackSequence(session.end, pinned=pinned))

    def _release_sequence(
        self, session: Session, engine: int, end: str | None, *, drop: bool
    ) -> None:
        """Detach a session from a sequence, which other sessions may still share."""
        if end is None:
            return
        others = self._by_end[engine, end]
        others.remove(session)
        if not others:
            del self._by_end[engine, end]
        if drop and not others:
            self._send(engine, EvictCachedSequence(end))
        elif session.pinned:
            pinned = any(other.pinned for other in others)
            self._send(engine, TrackSequence(end, pinned=pinned))

    def _remove(self, session: Session, *, drop: bool) -> None:
        self._release_sequence(session, session.engine, session.end, drop=drop)
        self._measure(session, None)
        self._message_bytes[session.client] -= session.message_bytes
        self._count[session.client] -= 1
        if not self._count[session.client]:  # clients choose their names
            for counter in (self._count, self._own_bytes, self._message_bytes):
                counter.pop(session.client, None)
        del self._sessions[session.key]
        self._files.delete(session.key)

    def _enforce_limits(self, client: ClientName) -> None:
        """Remove the least recently used sessions of a client that has too many or too large
        ones."""
        max_count, max_bytes = self._settings.max_per_client, self._settings.max_bytes_per_client
        if self._count[client] > max_count or self._own_bytes[client] > max_bytes:
            for session in [s for s in self._sessions.values() if s.client == client][:-1]:
                too_large = self._own_bytes[client] > max_bytes
                if not too_large and self._count[client] <= max_count:
                    break
                if not (session.pinned or session.active):
                    self._remove(session, drop=too_large)
        self._drop_messages()

    def _drop_messages(self) -> None:
        """Remove the messages of the least recently used sessions, if all messages are too large,
        each time of the client that has most."""
        while self._message_bytes.total() > _MAX_MESSAGE_BYTES:
            sessions = list(self._sessions.values())[:-1]
            client = max(self._message_bytes, key=lambda name: self._message_bytes[name])
            its = (each for each in sessions if each.client == client)
            session = next((each for each in its if each.said and not each.active), None)
            if session is None:
                return
            self._message_bytes[client] -= session.message_bytes
            session.said = None
            self._files.write(session)


def messages_after(request: ActiveRequest) -> list[Turn] | None:
    """Return all messages of a conversation after a request was answered: empty if its client
    always sends the whole conversation, None if not all are known."""
    body = request.dispatch.request
    if body.ordered_session is None or body.history == "sent" or not body.messages or body.n > 1:
        return []
    if (answer := request.answer) is None:
        return None
    if not body.continue_final_message:
        return [*body.turns, answer]
    *before, partial = body.turns
    return [*before, {**partial, **answer, "content": partial["content"] + answer["content"]}]
