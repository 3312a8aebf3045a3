"""Which prefixes each worker has cached: as workers report them, and as expected until they do."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.fleet.registry import NodeRegistry
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import encode
from shared.errors import BusError, DecodeError
from shared.ids import BootId, SessionKey, WorkerId
from shared.messages.control import ControlReply, TellKept
from shared.messages.events import KeptPrefixes, Tier
from shared.messages.prefixes import session_link
from shared.messages.sender import decode_from
from shared.messages.worker_report import WorkerReport
from shared.refused_messages import RefusedMessages
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
_MAX_QUERIES = 256
"""Workers that are asked at a time."""
_NO_LINKS: Mapping[str, Tier] = MappingProxyType({})
_EXPECTED_S = 10.0
"""An expected prefix that is not reported within this time is not cached; workers report every
5 s."""


@dataclass(slots=True)
class _WorkerPrefixes:
    """
    Attributes:
        number: of the last report.
        links: prefix hashes, expected ones included.
        sessions: hashes of sessions, and how many turns of each the worker has.
        expected: when the expectation of each link expires, soonest first.
    """

    boot_id: BootId
    number: int
    links: dict[str, Tier] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)

    @property
    def hashes(self) -> set[str]:
        """Links and sessions."""
        return {*self.links, *self.sessions}


class PrefixCacheIndex:
    """The cached prefixes of each worker. Reports of workers that are not in the registry are
    ignored."""

    def __init__(
        self,
        bus: Bus,
        registry: NodeRegistry,
        refused: RefusedMessages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._registry = registry
        self._refused = refused
        self._clock = clock
        self._by_worker: dict[WorkerId, _WorkerPrefixes] = {}
        self._workers_by_hash: dict[str, set[WorkerId]] = {}
        self._querying: set[WorkerId] = set()
        self._tasks = Tasks()

    async def close(self) -> None:
        """Request no more reports."""
        await self._tasks.end()

    async def open(self) -> None:
        await self._bus.subscribe(subjects.PREFIX_EVENT_ALL, self._on_report)

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        """Return the prefix hashes that a worker has cached, and in which tier."""
        known = self._by_worker.get(worker)
        if known is None:
            return _NO_LINKS
        if known.expected:
            self._drop_expired(worker, known)
        return known.links

    def workers_caching(self, link: str) -> Collection[WorkerId]:
        """Return the workers that have a prefix cached, or that know a session by its hash."""
        return self._workers_by_hash.get(link, ())

    def home(self, session: SessionKey) -> WorkerId | None:
        """Return the worker that has the most turns of a session."""
        link = session_link(*session).hex()
        turns = {id: self._by_worker[id].sessions.get(link, 0) for id in self.workers_caching(link)}
        return max(turns, key=lambda worker: (turns[worker], worker), default=None)

    def forget(self, worker: WorkerId, boot_id: BootId) -> None:
        """Drop a boot of a worker that ended."""
        known = self._by_worker.get(worker)
        if known is not None and known.boot_id == boot_id:
            del self._by_worker[worker]
            self._drop_worker(worker, known.hashes)

    def expect_cached(self, worker: WorkerId, links: Iterable[str]) -> None:
        """Record a prompt that a worker has prefilled as cached there. The worker reports it some
        seconds later; until then prompts with the same prefix should go there, too."""
        known, view = self._by_worker.get(worker), self._registry.worker(worker)
        if known is None or view is None or not has_prefix_cache(view.report):
            return
        until = self._clock() + _EXPECTED_S
        for link in links:
            if link not in known.links or known.expected.pop(link, None) is not None:
                known.links[link] = "memory"
                known.expected[link] = until
                self._workers_by_hash.setdefault(link, set()).add(worker)

    def request_full_report(self, worker: WorkerId) -> None:
        """Have a worker report everything that it has cached, unless it is being asked already or
        too many others are: the next incremental report then shows the gap again."""
        if worker not in self._querying and len(self._querying) < _MAX_QUERIES:
            self._querying.add(worker)
            self._tasks.start(self._query(worker))

    async def _query(self, worker: WorkerId) -> None:
        """A worker that does not answer is queried again after its next incremental report."""
        order = TellKept()
        subject = subjects.worker_control(worker, order.verb)
        try:
            answer = await self._bus.request(subject, encode(order), timeout_s=_ANSWER_S)
            report = decode_from(worker, ControlReply, answer.payload).kept
        except BusError as error:
            logger.debug("worker %s does not report its cached prefixes: %s", worker, error.message)
            return
        except DecodeError as error:
            self._refused.add(error, subject)
            return
        finally:
            self._querying.discard(worker)
        if report is not None and self._registry.worker(report.worker) is not None:
            self.apply_report(report)

    async def _on_report(self, message: IncomingMessage) -> None:
        try:
            report = decode_from(
                subjects.event_sender(message.subject), KeptPrefixes, message.payload
            )
        except DecodeError as error:
            self._refused.add(error, message.subject)
            return
        if self._registry.worker(report.worker) is None:
            return  # the worker is queried when it joins
        known = self._by_worker.get(report.worker)
        whole = report.whole or report.number == 1
        boot_id, number = report.boot_id, report.number
        if whole or (known and (known.boot_id, known.number + 1) == (boot_id, number)):
            self.apply_report(report)
        elif known is None or (known.boot_id, known.number) != (boot_id, number):
            self.request_full_report(report.worker)

    def apply_report(self, report: KeptPrefixes) -> None:
        """Apply a report; reports older than the last one are ignored."""
        worker, known = report.worker, self._by_worker.get(report.worker)
        if known is None or known.boot_id != report.boot_id:
            if known is not None:
                self._drop_worker(worker, known.hashes)
            known = self._by_worker[worker] = _WorkerPrefixes(report.boot_id, 0)
        if report.number < known.number:
            return
        before = known.hashes
        if report.whole:
            known.links, known.sessions = {}, {}
            known.expected.clear()
        known.number = report.number
        for link in (*report.links, *report.gone):
            known.expected.pop(link, None)
        known.links |= report.links
        known.sessions |= report.sessions
        for gone in report.gone:
            known.links.pop(gone, None)
            known.sessions.pop(gone, None)
        now = known.hashes
        self._drop_worker(worker, before - now)
        for link in now - before:
            self._workers_by_hash.setdefault(link, set()).add(worker)

    def _drop_expired(self, worker: WorkerId, known: _WorkerPrefixes) -> None:
        now, expired = self._clock(), []
        for link, until in known.expected.items():
            if until > now:
                break
            expired.append(link)
        for link in expired:
            del known.expected[link], known.links[link]
        self._drop_worker(worker, expired)

    def _drop_worker(self, worker: WorkerId, links: Iterable[str]) -> None:
        """Remove a worker from those that have these hashes."""
        for link in links:
            workers = self._workers_by_hash[link]
            workers.discard(worker)
            if not workers:
                del self._workers_by_hash[link]


def has_prefix_cache(report: WorkerReport) -> bool:
    """Whether a worker caches prefixes at all."""
    return any(engine.kv_memory.memory_limit_bytes for engine in report.engines)
