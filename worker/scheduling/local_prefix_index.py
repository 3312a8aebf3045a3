"""The cached prefixes that this worker reports to controllers: see `shared.messages.prefixes`."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from shared.ids import BootId, WorkerId
from shared.messages.events import KeptPrefixes, Tier
from shared.messages.prefixes import conversation_links, session_link
from shared.messages.stream import DoneMessage
from worker.link.facts import CachedSequenceMeasurements, SequenceCached
from worker.requests.active_request import ActiveRequest
from worker.sessions.store import SessionStore

_MAX_REPORTED = 500

Links = list[tuple[str, int]]
"""Each link, and how many tokens of its sequence it covers."""


@dataclass(slots=True)
class _CachedSequence:
    """
    Attributes:
        tokens, memory_tokens: number of leading tokens that are cached at all, and in memory; 0
            while unknown.
    """

    links: Links
    tokens: int = 0
    memory_tokens: int = 0


class LocalPrefixIndex:
    """The sequences that were served last, and how much of them is cached."""

    def __init__(self, worker: WorkerId, boot_id: BootId, sessions: SessionStore) -> None:
        self._worker = worker
        self._boot_id = boot_id
        self._sessions = sessions
        self._sequences: OrderedDict[tuple[int, str], _CachedSequence] = OrderedDict()  # LRU
        for session in sessions.cached()[-_MAX_REPORTED:]:
            if session.said and session.end is not None:
                conversation = conversation_links(session.model, session.said)
                links = [(link.hex(), int(share * session.tokens)) for link, share in conversation]
                self._sequences[session.engine, session.end] = _CachedSequence(links)
        self._engines_by_link: dict[str, set[int]] | None = None  # None: to be computed
        self._number = 0
        self._reported: tuple[dict[str, Tier], dict[str, int]] = ({}, {})

    def on_sequence_cached(
        self, engine: int, cached: SequenceCached, request: ActiveRequest
    ) -> None:
        """Record that an engine has cached the first choice of a request; all of it is in memory
        now."""
        sequence = _CachedSequence(_links(request, cached.tokens), cached.tokens, cached.tokens)
        self._sequences[engine, cached.end] = sequence
        self._engines_by_link = None
        self._sequences.move_to_end((engine, cached.end))
        if len(self._sequences) > _MAX_REPORTED:
            self._sequences.popitem(last=False)

    def on_measured(self, engine: int, sequences: Iterable[CachedSequenceMeasurements]) -> None:
        """Update how much of some sequences is cached."""
        for measured in sequences:
            if (sequence := self._sequences.get((engine, measured.end))) is not None:
                sequence.tokens, sequence.memory_tokens = measured.tokens, measured.memory_tokens
                self._engines_by_link = None

    def on_engine_lost(self, engine: int) -> None:
        """Forget how much an engine has cached, until its successor reports it."""
        for (index, _), sequence in self._sequences.items():
            if index == engine:
                sequence.tokens = sequence.memory_tokens = 0
        self._engines_by_link = None

    def cached_shares(self, links: Iterable[tuple[bytes, float]]) -> dict[int, float]:
        """Return the share of a prompt with these links that each engine has cached, without the
        engines that have none of it."""
        if self._engines_by_link is None:
            self._engines_by_link = {}
            for (engine, _), sequence in self._sequences.items():
                for name, tokens in sequence.links:
                    if tokens <= sequence.tokens:
                        self._engines_by_link.setdefault(name, set()).add(engine)
        shares: dict[int, float] = {}
        for link, share in links:
            engines = self._engines_by_link.get(link.hex(), ())
            if not engines:
                break
            shares |= dict.fromkeys(engines, min(share, 1.0))
        return shares

    def changes(self) -> KeptPrefixes | None:
        """Return what changed since the last call; None if nothing did."""
        links, sessions = current = self._current()
        old_links, old_sessions = self._reported
        new_links = {link: tier for link, tier in links.items() if old_links.get(link) != tier}
        new = {link: turns for link, turns in sessions.items() if old_sessions.get(link) != turns}
        gone = [*(old_links.keys() - links.keys()), *(old_sessions.keys() - sessions.keys())]
        if not (new_links or new or gone):
            return None
        self._reported = current
        self._number += 1
        return KeptPrefixes(
            worker=self._worker,
            boot_id=self._boot_id,
            number=self._number,
            links=new_links,
            sessions=new,
            gone=sorted(gone),
        )

    def snapshot(self) -> KeptPrefixes:
        """Return all that was reported so far; the next changes are relative to it."""
        links, sessions = self._reported
        return KeptPrefixes(
            worker=self._worker,
            boot_id=self._boot_id,
            number=self._number,
            whole=True,
            links=links,
            sessions=sessions,
        )

    def _current(self) -> tuple[dict[str, Tier], dict[str, int]]:
        links: dict[str, Tier] = {}
        for link, tier in self._all_links():
            if links.get(link) != "memory":
                if link not in links and len(links) == _MAX_REPORTED:
                    break
                links[link] = tier
        sessions = {
            session_link(*key).hex(): turns
            for key, turns in islice(self._sessions.turns_by_session(), _MAX_REPORTED)
        }
        return links, sessions

    def _all_links(self) -> Iterator[tuple[str, Tier]]:
        for sequence in reversed(self._sequences.values()):
            for link, tokens in sequence.links:
                if tokens <= sequence.memory_tokens:
                    yield link, "memory"
                elif tokens <= sequence.tokens:
                    yield link, "disk"


def _links(request: ActiveRequest, tokens: int) -> Links:
    """Return the links of a prompt and its answer, which have `tokens` tokens together."""
    answer = request.answer if isinstance(request.end, DoneMessage) else None
    prompt_tokens = min(request.prompt_tokens, tokens)
    answer_tokens = tokens - prompt_tokens
    return [
        (link.hex(), int(prompt_tokens * min(share, 1.0) + answer_tokens * max(0.0, share - 1.0)))
        for link, share in request.prefix_links(answer)
    ]
