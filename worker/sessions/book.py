"""All sessions of a worker: begun, gone on with, listed, pinned, forgotten."""

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from shared.errors import RequestError
from shared.ids import ClientName, SessionKey
from shared.messages.control import SessionStatus
from shared.messages.request import Turn
from shared.settings.kv_cache import SessionsSettings
from worker.link.facts import SequenceCached, SequenceMeasured
from worker.link.orders import DropSequence, Order, TrackSequence
from worker.requests.active_request import ActiveRequest
from worker.sessions.files import SessionFiles
from worker.sessions.session import Session

_MOST_SAID_BYTES = 256 * 2**20
_PINNED_SHARE = 0.5

Send = Callable[[int, Order], None]


class SessionStore:
    """Belongs to the agent.

    Args:
        send: gives an order to an engine.
        pin_limit_bytes: of what is kept; pinned sessions may take a half of that.
        clock: in seconds since 1970.
    """

    def __init__(
        self,
        settings: SessionsSettings,
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
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()  # longest unused first
        self._by_end: defaultdict[tuple[int, str], list[Session]] = defaultdict(list)
        self._said_bytes = 0
        self._count: Counter[ClientName] = Counter()
        self._own_bytes: Counter[ClientName] = Counter()
        for session in sorted(files.read(), key=lambda session: session.used_at):
            self._add(session)
        self.tick()

    def configure(self, settings: SessionsSettings) -> None:
        """Hold other limits from the next `tick` on."""
        self._settings = settings

    def __len__(self) -> int:
        return len(self._sessions)

    def texts(self) -> list[Session]:
        """The sessions whose text is, or was, kept: the longest unused first."""
        return [session for session in self._sessions.values() if session.end is not None]

    def turns_by_session(self) -> Iterator[tuple[SessionKey, int]]:
        """The sessions of which turns may come alone, the last used first."""
        for session in reversed(self._sessions.values()):
            if session.said != []:
                yield session.key, session.turns

    # Turns.

    def begin(self, request: ActiveRequest) -> None:
        """A turn is with an engine now."""
        if request.session is None or request.counts_only:
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
        """A turn that was begun ended: with an answer, or it does not count."""
        session = self._sessions.get(request.session) if request.session is not None else None
        if session is None or request.counts_only or request.engine is None:
            return
        session.active = max(0, session.active - 1)
        session.used_at = self._clock()
        if answered:
            session.model = request.model
            self._said_bytes -= session.said_bytes
            session.said = said_with(request)
            self._said_bytes += session.said_bytes
            session.turns = max(session.turns + 1, session.answers)
            self._files.write(session)
            self._keep_within_limits(session.client)
        elif session.turns == 0 and session.active == 0:
            self._remove(session, drop=False)

    # What engines keep.

    def on_text_kept(self, engine: int, kept: SequenceCached, request: ActiveRequest) -> None:
        """What is kept of a turn: of its session it replaces what was kept before."""
        session = self._sessions.get(request.session) if request.session is not None else None
        if session is None or request.counts_only:
            return
        if (session.engine, session.end) == (engine, kept.end):
            return
        before = session.engine, session.end
        session.engine, session.end, session.tokens = engine, kept.end, kept.tokens
        self._measure(session, None)
        self._by_end[engine, kept.end].append(session)
        self._leave(session, *before, drop=False)
        if session.pinned:
            self._follow(session)
        if session.turns:
            self._files.write(session)

    def on_measured(self, engine: int, texts: Iterable[SequenceMeasured]) -> None:
        """How much is kept of some texts."""
        clients = set()
        for text in texts:
            for session in self._by_end.get((engine, text.end), ()):
                self._measure(session, text)
                clients.add(session.client)
        for client in clients:
            self._keep_within_limits(client)

    def on_engine_started(self, engine: int) -> None:
        """An engine knows nothing of what was followed before."""
        for (index, _), sessions in self._by_end.items():
            if index == engine:
                for session in sessions:
                    self._measure(session, None)
                self._follow(sessions[0])

    # What people ask.

    def listing(self, client: ClientName | None = None) -> list[SessionStatus]:
        """All sessions, or a client's; the last used first."""
        now = self._clock()
        return [
            session.status(now)
            for session in reversed(self._sessions.values())
            if client in (None, session.client)
        ]

    def status(self, key: SessionKey) -> SessionStatus:
        """Raises RequestError: there is no such session."""
        return self._find(key).status(self._clock())

    def said(self, key: SessionKey) -> list[Turn] | None:
        """All messages of a session; None where it is not here, or not all are known."""
        session = self._sessions.get(key)
        return session.said if session is not None else None

    def forget(self, key: SessionKey, *, drop: bool = True) -> None:
        """Forget a session, and with `drop` all that is kept of its text alone.

        Raises:
            RequestError: there is no such session.
        """
        self._remove(self._find(key), drop=drop)

    def pin(self, key: SessionKey, *, pinned: bool) -> SessionStatus:
        """Keep a session, and its text, when others go; or no longer.

        Raises:
            RequestError: there is no such session, or pinned ones would take more than half of
                what may be kept.
        """
        session = self._find(key)
        if pinned and not session.pinned:
            held = sum(other.own_bytes for other in self._sessions.values() if other.pinned)
            limit = int(self._pin_limit_bytes() * _PINNED_SHARE)
            if held + session.own_bytes > limit:
                raise RequestError(
                    f"pinned sessions would take {held + session.own_bytes} bytes; at most "
                    f"{limit}, half of what is kept, may be pinned",
                    code="session_quota",
                )
        session.pinned = pinned
        self._follow(session)
        self._files.write(session)
        return session.status(self._clock())

    def tick(self) -> None:
        """Forget what was not used for too long; call it now and then."""
        horizon = self._clock() - self._settings.ttl_s
        old = list(takewhile(lambda session: session.used_at < horizon, self._sessions.values()))
        for session in old:
            if not (session.pinned or session.active):
                self._remove(session, drop=True)

    def close(self) -> None:
        self._files.close()

    # Inside.

    def _find(self, key: SessionKey) -> Session:
        if (session := self._sessions.get(key)) is None:
            raise RequestError(f"no session {key[1]!r} of {key[0]!r} here", code="unknown_session")
        return session

    def _add(self, session: Session) -> None:
        self._sessions[session.key] = session
        self._count[session.client] += 1
        self._said_bytes += session.said_bytes
        if session.end is not None:
            self._by_end[session.engine, session.end].append(session)

    def _measure(self, session: Session, measured: SequenceMeasured | None) -> None:
        self._own_bytes[session.client] -= session.own_bytes
        session.measured = measured
        self._own_bytes[session.client] += session.own_bytes

    def _follow(self, session: Session) -> None:
        """Hear of the text of a session, which others may have too; pinned if one of them is."""
        if session.end is not None:
            others = self._by_end[session.engine, session.end]
            pinned = any(other.pinned for other in others)
            self._send(session.engine, TrackSequence(session.end, pinned=pinned))

    def _leave(self, session: Session, engine: int, end: str | None, *, drop: bool) -> None:
        """A text is that of a session no more; whoever else has it keeps it."""
        if end is None:
            return
        others = self._by_end[engine, end]
        others.remove(session)
        if not others:
            del self._by_end[engine, end]
        if drop and not others:
            self._send(engine, DropSequence(end))
        elif session.pinned:
            pinned = any(other.pinned for other in others)
            self._send(engine, TrackSequence(end, pinned=pinned))

    def _remove(self, session: Session, *, drop: bool) -> None:
        self._leave(session, session.engine, session.end, drop=drop)
        self._measure(session, None)
        self._said_bytes -= session.said_bytes
        self._count[session.client] -= 1
        del self._sessions[session.key]
        self._files.delete(session.key)

    def _keep_within_limits(self, client: ClientName) -> None:
        """Of a client with too many or too large sessions the longest unused go; of too many
        messages in all, those of the longest unused sessions."""
        most, most_bytes = self._settings.max_per_client, self._settings.most_bytes_per_client
        if self._count[client] > most or self._own_bytes[client] > most_bytes:
            for session in [s for s in self._sessions.values() if s.client == client][:-1]:
                too_large = self._own_bytes[client] > most_bytes
                if not too_large and self._count[client] <= most:
                    break
                if not (session.pinned or session.active):
                    self._remove(session, drop=too_large)
        if self._said_bytes > _MOST_SAID_BYTES:
            for session in list(self._sessions.values())[:-1]:
                if session.said and not session.active:
                    self._said_bytes -= session.said_bytes
                    session.said = None
                    self._files.write(session)
                if self._said_bytes <= _MOST_SAID_BYTES:
                    break


def said_with(request: ActiveRequest) -> list[Turn] | None:
    """All that was said in a conversation once a request was answered: nothing where its turns
    never come alone, None where not all is known."""
    body = request.dispatch.request
    if body.turn_of is None or body.history == "sent" or not body.messages or body.n > 1:
        return []
    if (answer := request.answer) is None:
        return None
    if not body.continue_final_message:
        return [*body.turns, answer]
    *before, begun = body.turns
    return [*before, {**begun, **answer, "content": begun["content"] + answer["content"]}]
