"""Polls what viewers look at, while there are viewers, and keeps the events of each view."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import orjson

from controller.gateway.health_poller import HealthPoller
from controller.gateway.live.changes import (
    Change,
    health_changes,
    request_changes,
    rollout_changes,
)
from controller.gateway.live.cluster_rows import machine_rows, model_rows, overview
from controller.gateway.live.rate_history import RateHistory
from controller.gateway.live.request_rows import (
    RequestKey,
    RequestRates,
    request_rows,
    session_rows,
)
from controller.gateway.live.table import TableEvents, VersionedValue, event
from shared.change_notifier import ChangeNotifier
from shared.client import Cluster
from shared.errors import ClusterError
from shared.ids import ClientName, WorkerId
from shared.messages.control import ControlReply, ListRequests, ListSessions
from shared.messages.health import ClusterHealth
from shared.messages.request_list import RequestActivity, RequestList, RequestSummary
from shared.messages.rollout import RolloutState, ShowRollout
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

TICK_S = 1.0
_SESSIONS_EVERY_S = 5.0
_ROLLOUT_EVERY_S = 2.0
_MAX_MACHINES = 1000
_MAX_REQUESTS = 200
_MAX_SESSIONS = 200
_MAX_ASKED_WORKERS = 20
"""Workers that are asked in one tick what they do with requests, and which sessions they have."""
_REPLY_S = 0.5
_CONCURRENT_POLLS = 16
_MAX_RECORDS = 200
_ROLLOUT_FIELDS = {
    "version", "before", "phase", "steps", "step", "paused", "began_at", "since", "by", "note",
    "reason",
}  # fmt: skip


class ClusterLog:
    """What happened, the newest records last. The version is the number of all records."""

    def __init__(self) -> None:
        self.version = 0
        self._records: deque[bytes] = deque(maxlen=_MAX_RECORDS)

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._records.append(orjson.dumps({"time": round(time.time(), 3), **asdict(change)}))
            self.version += 1

    def since(self, version: int) -> bytes:
        """Return the event with the records after this version; empty if there are none."""
        new = min(self.version - version, len(self._records))
        if new <= 0:
            return b""
        records = list(self._records)[len(self._records) - new :]
        return event("log", b'{"records":[%s]}' % b",".join(records))


class RequestsView:
    """The requests of one client, or of all."""

    def __init__(self, client: ClientName | None) -> None:
        self.client = client
        self.viewers = 0
        self.events = TableEvents("requests")
        self.listed: dict[str, RequestSummary] = {}
        self._rates = RequestRates()

    def update(
        self, listed: RequestList, activities: Mapping[RequestKey, RequestActivity]
    ) -> list[Change]:
        """Set the current requests; return what happened to them."""
        summaries = {f"{each.client}/{each.request_id}": each for each in listed.requests}
        changes = list(request_changes(self.listed, summaries))
        self.listed = summaries
        self._rates.record(listed.requests, time.monotonic())
        extra = {"total": listed.total, "states": listed.states}
        self.events.update(request_rows(listed, activities, self._rates), extra)
        return changes


class LiveFeed:
    """The events of all views. `run` polls; viewers register with `watch` and `unwatch`.

    Attributes:
        changed: notified when a view may have changed, or the feed ended.
        ended: the gateway shuts down.
        log: also of the time without viewers.
        viewers: how many there are.
    """

    def __init__(self, cluster: Cluster, poller: HealthPoller) -> None:
        self.changed = ChangeNotifier()
        self.ended = False
        self.log = ClusterLog()
        self.overview = VersionedValue("overview")
        self.machines = TableEvents("machines")
        self.models = TableEvents("models")
        self.sessions = TableEvents("sessions")
        self.rollout = VersionedValue("rollout")
        self._views: dict[str, VersionedValue | TableEvents | ClusterLog] = {
            "overview": self.overview, "machines": self.machines, "models": self.models,
            "sessions": self.sessions, "rollout": self.rollout, "log": self.log,
        }  # fmt: skip
        self._requests: dict[ClientName | None, RequestsView] = {}
        self._cluster = cluster
        self._poller = poller
        self._history = RateHistory()
        self.viewers = 0
        self._watched: Counter[str] = Counter()
        self._before: ClusterHealth | None = None
        self._rollout_before: RolloutState | None = None
        self._due = {"sessions": 0.0, "rollout": 0.0}
        self._wake = asyncio.Event()
        self._tasks = Tasks()
        self._polled: set[object] = set()  # views whose polls run
        self._poll_slots = asyncio.Semaphore(_CONCURRENT_POLLS)
        poller.on_poll.append(self._on_poll)

    # Viewers.

    def watch(self, views: Iterable[str], client: ClientName | None) -> None:
        """A viewer looks at these views; at the requests of a client, or of all."""
        self.viewers += 1
        for view in views:
            self._watched[view] += 1
            if view == "requests":
                self._requests.setdefault(client, RequestsView(client)).viewers += 1
        self._poller.watched = True
        self.poll_soon()
        self._show_health()
        self._wake.set()

    def unwatch(self, views: Iterable[str], client: ClientName | None) -> None:
        """A viewer that called `watch` has left."""
        self.viewers -= 1
        for view in views:
            self._watched[view] -= 1
            if view == "requests":
                self._requests[client].viewers -= 1
                if not self._requests[client].viewers:
                    del self._requests[client]
        if not self.viewers:
            self._poller.watched = False
            self._wake.clear()

    def poll_soon(self) -> None:
        """Poll all views within a second, also those that are polled less often."""
        self._due = dict.fromkeys(self._due, 0.0)

    def end(self) -> None:
        """End the streams of all viewers: the gateway shuts down."""
        self.ended = True
        self.changed.notify()

    def since(self, view: str, version: int, client: ClientName | None) -> tuple[bytes, int]:
        """Return the event of a view for a viewer that has this version, and the version then.
        The event is empty if nothing is new; version 0 has nothing."""
        source = self._views[view] if view != "requests" else self._requests[client].events
        return source.since(version), source.version

    # Polling.

    async def run(self) -> None:
        """Poll while there are viewers, until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._start_polls()
                await asyncio.sleep(TICK_S)
        finally:
            await self._tasks.end()

    def _start_polls(self) -> None:
        """Poll each view that is due, beside the others: one that is slow delays only itself."""
        for view in self._requests.values():
            self._start_poll(view, partial(self._poll_requests, view))
        now = time.monotonic()
        if self._watched["sessions"] and now >= self._due["sessions"]:
            self._due["sessions"] = now + _SESSIONS_EVERY_S
            self._start_poll("sessions", self._poll_sessions)
        if self._watched["rollout"] and now >= self._due["rollout"]:
            self._due["rollout"] = now + _ROLLOUT_EVERY_S
            self._start_poll("rollout", self._poll_rollout)

    def _start_poll(self, view: object, poll: Callable[[], Awaitable[None]]) -> None:
        """Run a poll of a view unless the last one still runs."""
        if view not in self._polled:
            self._polled.add(view)
            self._tasks.start(self._poll(view, poll))

    async def _poll(self, view: object, poll: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._poll_slots:
                await poll()
        except ClusterError as error:  # `overview` tells the problem
            logger.debug("cannot poll the cluster: %s", error.message)
        except Exception:  # a view fails, not the gateway
            logger.exception("a view of the cluster failed")
        finally:
            self._polled.discard(view)
        self.changed.notify()

    def _on_poll(self) -> None:
        health = self._poller.health
        if health is not None and health is not self._before:
            self._history.record({worker.id: worker.tokens_per_s for worker in health.workers})
            self.log.add(health_changes(self._before, health))
            self._before = health
        self._show_health()
        self.changed.notify()

    def _show_health(self) -> None:
        """Update the watched views of the cluster's health."""
        health, problem = self._poller.health, self._poller.problem
        if self._watched["overview"]:
            self.overview.update(overview(health, problem, self._history))
        if health is None:
            return
        if self._watched["machines"]:
            total = {"total": len(health.workers)}
            rows = machine_rows(health, self._history)
            self.machines.update(dict(islice(rows.items(), _MAX_MACHINES)), total)
        if self._watched["models"]:
            self.models.update(model_rows(health))

    async def _poll_requests(self, view: RequestsView) -> None:
        listed = await self._cluster.list_requests(view.client, limit=_MAX_REQUESTS)
        workers = Counter(each.worker for each in listed.requests if each.worker is not None)
        asked = [worker for worker, _ in workers.most_common(_MAX_ASKED_WORKERS)]
        replies = await self._ask(asked, ListRequests(client=view.client))
        activities = {
            (each.client, each.request_id): each
            for reply in replies.values()
            for each in reply.requests
        }
        self.log.add(view.update(listed, activities))

    async def _poll_sessions(self) -> None:
        health = self._poller.health
        if health is None:
            return  # which sessions there are is not known
        workers = [worker.id for worker in health.workers]
        replies = await self._ask(workers[:_MAX_ASKED_WORKERS], ListSessions(limit=_MAX_SESSIONS))
        sessions = {worker: reply.sessions for worker, reply in replies.items()}
        rows = session_rows(sessions)
        shown = dict(islice(rows.items(), _MAX_SESSIONS))
        self.sessions.update(shown, {"total": len(rows), "workers": len(replies)})

    async def _poll_rollout(self) -> None:
        state = (await self._cluster.rollout(ShowRollout())).state or RolloutState()
        self.log.add(rollout_changes(self._rollout_before, state))
        self._rollout_before = state
        self.rollout.update(_rollout(state))

    async def _ask(
        self, workers: Iterable[WorkerId], order: ListRequests | ListSessions
    ) -> dict[WorkerId, ControlReply]:
        """Return the replies of the workers that answer."""

        async def ask(worker: WorkerId) -> tuple[WorkerId, ControlReply | None]:
            try:
                async with asyncio.timeout(_REPLY_S):
                    return worker, await self._cluster.control(worker, order)
            except (ClusterError, TimeoutError):  # gone, busy, or of a release without this order
                return worker, None

        replies = await asyncio.gather(*map(ask, workers))
        return {worker: reply for worker, reply in replies if reply is not None and reply.ok}


def _rollout(state: RolloutState) -> dict[str, Any]:
    current = state.rollout
    return {
        "stable": state.stable,
        "last_version": state.last_version,
        "rollout": current.model_dump(include=_ROLLOUT_FIELDS) if current is not None else None,
        "history": [each.model_dump(include=_ROLLOUT_FIELDS) for each in state.history[:10]],
    }
