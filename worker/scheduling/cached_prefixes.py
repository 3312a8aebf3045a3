"""What of prompts this worker keeps, as controllers compare it: see `shared.messages.prefixes`."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from shared.ids import BootId, WorkerId
from shared.messages.events import KeptPrefixes, Tier
from shared.messages.prefixes import conversation_links, session_link
from shared.messages.stream import Done
from worker.link.facts import SequenceCached, SequenceMeasured
from worker.requests.active_request import ActiveRequest
from worker.sessions.book import SessionStore

_MOST = 500

Links = list[tuple[str, int]]
"""Each link, and how many tokens of the text are needed for it."""


@dataclass(slots=True)
class _Text:
    """
    Attributes:
        tokens, memory_tokens: how many first ones can be had at all, and from memory; 0 while
            nobody knows.
    """

    links: Links
    tokens: int = 0
    memory_tokens: int = 0


class CachedPrefixTracker:
    """The last prompts that were served, and how much of them is kept."""

    def __init__(self, worker: WorkerId, boot_id: BootId, sessions: SessionStore) -> None:
        self._worker = worker
        self._boot_id = boot_id
        self._sessions = sessions
        self._texts: OrderedDict[tuple[int, str], _Text] = OrderedDict()  # the last used one last
        for session in sessions.texts()[-_MOST:]:
            if session.said and session.end is not None:
                links = conversation_links(session.model, session.said)
                needed = [(link.hex(), int(share * session.tokens)) for link, share in links]
                self._texts[session.engine, session.end] = _Text(needed)
        self._engines_by_link: dict[str, set[int]] | None = None  # None: to be found anew
        self._number = 0
        self._told: tuple[dict[str, Tier], dict[str, int]] = ({}, {})

    def on_text_kept(self, engine: int, kept: SequenceCached, request: ActiveRequest) -> None:
        """What is kept of a request's first answer; all of it is in memory now."""
        text = _Text(_links(request, kept.tokens), kept.tokens, kept.tokens)
        self._texts[engine, kept.end] = text
        self._engines_by_link = None
        self._texts.move_to_end((engine, kept.end))
        if len(self._texts) > _MOST:
            self._texts.popitem(last=False)

    def on_measured(self, engine: int, texts: Iterable[SequenceMeasured]) -> None:
        """How much is kept of some texts."""
        for measured in texts:
            if (text := self._texts.get((engine, measured.end))) is not None:
                text.tokens, text.memory_tokens = measured.tokens, measured.memory_tokens
                self._engines_by_link = None

    def on_engine_lost(self, engine: int) -> None:
        """Nothing is known of what it kept, until a new one tells."""
        for (index, _), text in self._texts.items():
            if index == engine:
                text.tokens = text.memory_tokens = 0
        self._engines_by_link = None

    def shares(self, links: Iterable[tuple[bytes, float]]) -> dict[int, float]:
        """Which share of a prompt with these links each engine keeps; without those that keep
        nothing of it."""
        if self._engines_by_link is None:
            self._engines_by_link = {}
            for (engine, _), text in self._texts.items():
                for name, tokens in text.links:
                    if tokens <= text.tokens:
                        self._engines_by_link.setdefault(name, set()).add(engine)
        found: dict[int, float] = {}
        for link, share in links:
            engines = self._engines_by_link.get(link.hex(), ())
            if not engines:
                break
            found |= dict.fromkeys(engines, min(share, 1.0))
        return found

    def changes(self) -> KeptPrefixes | None:
        """What changed since this was asked last; None where nothing did."""
        links, sessions = now = self._now()
        told_links, told_sessions = self._told
        new_links = {link: tier for link, tier in links.items() if told_links.get(link) != tier}
        new = {link: turns for link, turns in sessions.items() if told_sessions.get(link) != turns}
        gone = [*(told_links.keys() - links.keys()), *(told_sessions.keys() - sessions.keys())]
        if not (new_links or new or gone):
            return None
        self._told = now
        self._number += 1
        return KeptPrefixes(
            worker=self._worker,
            boot_id=self._boot_id,
            number=self._number,
            links=new_links,
            sessions=new,
            gone=sorted(gone),
        )

    def whole(self) -> KeptPrefixes:
        """All that was told so far: the next changes go on from there."""
        links, sessions = self._told
        return KeptPrefixes(
            worker=self._worker,
            boot_id=self._boot_id,
            number=self._number,
            whole=True,
            links=links,
            sessions=sessions,
        )

    def _now(self) -> tuple[dict[str, Tier], dict[str, int]]:
        links: dict[str, Tier] = {}
        for link, tier in self._all_links():
            if links.get(link) != "memory":
                if link not in links and len(links) == _MOST:
                    break
                links[link] = tier
        sessions = {
            session_link(*key).hex(): turns
            for key, turns in islice(self._sessions.turns_by_session(), _MOST)
        }
        return links, sessions

    def _all_links(self) -> Iterator[tuple[str, Tier]]:
        for text in reversed(self._texts.values()):
            for link, tokens in text.links:
                if tokens <= text.memory_tokens:
                    yield link, "memory"
                elif tokens <= text.tokens:
                    yield link, "disk"


def _links(request: ActiveRequest, tokens: int) -> Links:
    """The links of a prompt and its answer, which have so many tokens together."""
    answer = request.answer if isinstance(request.end, Done) else None
    prompt_tokens = min(request.prompt_tokens, tokens)
    answer_tokens = tokens - prompt_tokens
    return [
        (link.hex(), int(prompt_tokens * min(share, 1.0) + answer_tokens * max(0.0, share - 1.0)))
        for link, share in request.prefix_links(answer)
    ]
