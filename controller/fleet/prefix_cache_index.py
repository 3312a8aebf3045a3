"""What each worker keeps of prompts, as workers tell it, and as is to be expected until they do."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.fleet.registry import Registry
from shared import subjects
from shared.bus import Bus, BusMessage
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import BootId, SessionKey, WorkerId
from shared.messages.control import ControlReply, TellKept
from shared.messages.events import KeptPrefixes, Tier
from shared.messages.prefixes import session_link
from shared.messages.worker_report import WorkerReport

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
_NO_LINKS: Mapping[str, Tier] = MappingProxyType({})
_EXPECTED_S = 10.0
"""What is expected and not told for so long is not kept; workers tell every 5 s."""


@dataclass(slots=True)
class _WorkerPrefixes:
    """
    Attributes:
        links: also those that are only expected.
        expected: until when, the first first.
    """

    boot_id: BootId
    number: int
    links: dict[str, Tier] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)

    @property
    def known(self) -> set[str]:
        """Links and sessions."""
        return {*self.links, *self.sessions}


class PrefixCacheIndex:
    """What workers keep, by worker; of one that is not in the registry nothing is taken."""

    def __init__(
        self, bus: Bus, registry: Registry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus = bus
        self._registry = registry
        self._clock = clock
        self._kept: dict[WorkerId, _WorkerPrefixes] = {}
        self._keepers: dict[str, set[WorkerId]] = {}
        self._to_ask: asyncio.Queue[WorkerId] = asyncio.Queue()

    async def run(self) -> None:
        """Ask whom there is to ask, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._ask(await self._to_ask.get()))

    async def open(self) -> None:
        await self._bus.subscribe(subjects.KEPT_EVENT_ALL, self._on_kept)

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        """Where the links are that a worker keeps."""
        kept = self._kept.get(worker)
        if kept is None:
            return _NO_LINKS
        if kept.expected:
            self._drop_expired(worker, kept)
        return kept.links

    def keepers(self, link: str) -> Collection[WorkerId]:
        """The workers that keep a link, or know a session by its own."""
        return self._keepers.get(link, ())

    def home(self, session: SessionKey) -> WorkerId | None:
        """The worker that knows most turns of a session."""
        link = session_link(*session).hex()
        turns = {id: self._kept[id].sessions.get(link, 0) for id in self.keepers(link)}
        return max(turns, key=lambda worker: (turns[worker], worker), default=None)

    def forget(self, worker: WorkerId, boot_id: BootId) -> None:
        """A boot of a worker is gone."""
        kept = self._kept.get(worker)
        if kept is not None and kept.boot_id == boot_id:
            del self._kept[worker]
            self._drop_worker(worker, kept.known)

    def expect(self, worker: WorkerId, links: Iterable[str]) -> None:
        """A worker has computed a prompt, and will tell in some seconds that it keeps it: until
        then what begins alike should go there too."""
        kept, view = self._kept.get(worker), self._registry.worker(worker)
        if kept is None or view is None or not has_prefix_cache(view.report):
            return
        until = self._clock() + _EXPECTED_S
        for link in links:
            if link not in kept.links or kept.expected.pop(link, None) is not None:
                kept.links[link] = "memory"
                kept.expected[link] = until
                self._keepers.setdefault(link, set()).add(worker)

    def ask(self, worker: WorkerId) -> None:
        """Have a worker tell all."""
        self._to_ask.put_nowait(worker)

    async def _ask(self, worker: WorkerId) -> None:
        """One that does not answer is asked again when it tells its next changes."""
        try:
            order = TellKept()
            subject = subjects.worker_control(worker, order.verb)
            answer = await self._bus.request(subject, encode(order), timeout_s=_ANSWER_S)
            kept = decode(ControlReply, answer.payload).kept
        except (BusError, DecodeError) as error:
            logger.debug("worker %s does not say what it keeps: %s", worker, error.message)
            return
        if kept is not None and self._registry.worker(kept.worker) is not None:
            self.take(kept)

    async def _on_kept(self, message: BusMessage) -> None:
        try:
            kept = decode(KeptPrefixes, message.payload)
        except DecodeError as error:
            logger.error("what a worker keeps could not be read: %s", error.message)
            return
        if self._registry.worker(kept.worker) is None:
            return  # it is asked when it is heard of
        known = self._kept.get(kept.worker)
        whole = kept.whole or kept.number == 1
        if whole or (known and (known.boot_id, known.number + 1) == (kept.boot_id, kept.number)):
            self.take(kept)
        elif known is None or (known.boot_id, known.number) != (kept.boot_id, kept.number):
            self.ask(kept.worker)

    def take(self, told: KeptPrefixes) -> None:
        """What a worker told."""
        kept = self._kept.get(told.worker)
        if kept is None or kept.boot_id != told.boot_id:
            if kept is not None:
                self._drop_worker(told.worker, kept.known)
            kept = self._kept[told.worker] = _WorkerPrefixes(told.boot_id, 0)
        if told.number < kept.number:
            return
        before = kept.known
        if told.whole:
            kept.links, kept.sessions = {}, {}
            kept.expected.clear()
        kept.number = told.number
        for link in (*told.links, *told.gone):
            kept.expected.pop(link, None)
        kept.links |= told.links
        kept.sessions |= told.sessions
        for gone in told.gone:
            kept.links.pop(gone, None)
            kept.sessions.pop(gone, None)
        now = kept.known
        self._drop_worker(told.worker, before - now)
        for link in now - before:
            self._keepers.setdefault(link, set()).add(told.worker)

    def _drop_expired(self, worker: WorkerId, kept: _WorkerPrefixes) -> None:
        now, expired = self._clock(), []
        for link, until in kept.expected.items():
            if until > now:
                break
            expired.append(link)
        for link in expired:
            del kept.expected[link], kept.links[link]
        self._drop_worker(worker, expired)

    def _drop_worker(self, worker: WorkerId, links: Iterable[str]) -> None:
        """A worker keeps these no more."""
        for link in links:
            keepers = self._keepers[link]
            keepers.discard(worker)
            if not keepers:
                del self._keepers[link]


def has_prefix_cache(report: WorkerReport) -> bool:
    """Whether a worker keeps anything of what it computes."""
    return any(engine.kv_memory.memory_limit_bytes for engine in report.engines)
