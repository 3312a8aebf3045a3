"""Finds a worker for a request: what it asks for, who is out for it, who of the others is
picked."""

import contextlib
from collections.abc import Callable, Collection, Hashable
from copy import deepcopy

from controller.dispatch.explanation import explained
from controller.dispatch.query_builder import route_query_of
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import Registry
from controller.fleet.session_affinity import SessionAffinity
from controller.requests.request import ClientRequest, WorkerRejection
from controller.routing import (
    TEMPORARY,
    NoRoute,
    Policy,
    RouteDecision,
    RouteQuery,
    find_ineligibility,
    nearest,
    policy_named,
    select_worker,
)
from shared.errors import Unavailable
from shared.ids import ControllerId, WorkerId
from shared.messages.routes import Route
from shared.settings import ClusterSettings
from shared.settings.controller import RoutingSettings

_MOST_NAMED = 10
"""An error tells so many rejections; the others are counted."""


class Router:
    """Args:
    draw: a random number from 0 to 1.
    """

    def __init__(
        self,
        controller: ControllerId,
        settings: ClusterSettings,
        registry: Registry,
        prefixes: PrefixCacheIndex,
        rng: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._prefixes = prefixes
        self._rng = rng
        self._rules = settings.worker.kv_cache.prompt_rules
        self._policy = policy_named(settings.controller.routing.policy)
        self.homes = SessionAffinity(prefixes, ttl_s=_session_ttl_s(settings.controller.routing))

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on."""
        routing = settings.controller.routing
        if routing.policy != self._policy.name:
            self._policy = policy_named(routing.policy)
        self._rules = settings.worker.kv_cache.prompt_rules
        self.homes.ttl_s = _session_ttl_s(routing)

    def query(self, request: ClientRequest, now: float) -> RouteQuery:
        """What it asks of a worker."""
        affinity = request.affinity
        home = self.homes.home(affinity, now) if affinity is not None else None
        if request.query is not None:
            return request.query._replace(home=home)
        hides = request.started or request.contents.reasoning_effort == "none"
        reasons = hides and self._registry.has_reasoning(request.models)
        return route_query_of(request, self._rules, home, reasons=reasons)

    def find(self, request: ClientRequest, query: RouteQuery, now: float) -> RouteDecision:
        """A worker that did not reject it, nor fail before unless there is no other.

        Raises:
            NoRoute: there is none.
        """
        out = {id for id, each in request.rejected.items() if not self._changed(id, each)}
        if request.tried:
            with contextlib.suppress(NoRoute):
                return self._choose(query, {*out, *request.tried}, self._policy, now)
        return self._choose(query, out, self._policy, now)

    def splits(self, request: ClientRequest, now: float) -> bool:
        """Whether it is served in parts: a list of prompts, or more choices than any worker decodes
        at once."""
        body = request.contents
        if len(body.prompts) > 1 or body.n == 1:
            return len(body.prompts) > 1
        _, most = self.capacity(request, now)
        return body.n > most > 0 and body.resume is None

    def capacity(self, request: ClientRequest, now: float) -> tuple[int, int]:
        """Batch slots of the workers that could serve a request if they had room, and the most that
        one of them has: for its first model that any of them has; of those that have it warm, if
        there are some."""
        body = request.contents
        query = RouteQuery(request.models, body.requires, body.level)
        for model in request.models:
            views = self._registry.warm(model)
            if not views or body.requires is not None:
                views = [
                    view
                    for view in self._registry.holding(model)
                    if (found := find_ineligibility(view, model, query, now)) is None
                    or found.passes
                ]
            slots = [view.models[model].speed.rows or view.report.max_batch_size for view in views]
            if sum(slots):
                return sum(slots), max(slots)
        return 0, 0

    def explain(self, request: ClientRequest, now: float) -> Route:
        """Where it would go now, and why."""
        query = self.query(request, now)
        try:
            return self.route(request, query, self._choose(query, (), deepcopy(self._policy), now))
        except NoRoute as error:
            return self.route(request, query, error)

    def route(
        self, request: ClientRequest, query: RouteQuery, decided: RouteDecision | NoRoute
    ) -> Route:
        """What was decided for a request, and why."""
        return explained(self._controller, self._policy.name, request.skill, query, decided)

    def _choose(
        self, query: RouteQuery, excluded: Collection[WorkerId], policy: Policy, now: float
    ) -> RouteDecision:
        return select_worker(
            query,
            self._registry,
            self._prefixes,
            policy,
            now=now,
            rng=self._rng,
            excluded=excluded,
        )

    def _changed(self, worker: WorkerId, rejection: WorkerRejection) -> bool:
        """Whether who rejected it was started again, or has told since how it stands now."""
        view = self._registry.worker(worker)
        if view is None or view.report.boot_id != rejection.boot_id:
            return view is not None
        return is_temporary(rejection) and view.seen_at > rejection.seen_at


def is_temporary(rejection: WorkerRejection) -> bool:
    """Whether the worker may get over it: also one that says when to come again; and one that is
    not there, or does not answer: it may be started again."""
    refusal = rejection.refusal
    return refusal.retry_after_ms is not None or refusal.code in (
        *TEMPORARY, "worker_lost", "not_claimed"
    )  # fmt: skip


def waiting_kind(request: ClientRequest, query: RouteQuery) -> Hashable:
    """Who is alike here finds a worker where this one does; None for who was rejected, or failed,
    somewhere."""
    if request.rejected or request.tried:
        return None
    requires = query.requires
    return tuple(query.models), requires and requires.model_dump_json(), query.abilities


def all_rejected(request: ClientRequest) -> Unavailable:
    """Why no worker takes it, as they said; where they are alike, the last one."""
    refusals = [each.refusal for each in request.rejected.values()]
    told = nearest(refusals[::-1])
    waits = [each.retry_after_ms for each in refusals if each.retry_after_ms is not None]
    others = len(refusals) - _MOST_NAMED
    more = [f"{others} others refused"] if others > 0 else []
    return Unavailable(
        "; ".join([*more, *(refusal.message for refusal in refusals[-_MOST_NAMED:])]),
        code=told.code,
        param=told.param,
        retry_after_ms=min(waits, default=None),
    )


def _session_ttl_s(routing: RoutingSettings) -> float | None:
    return routing.session_ttl_s if routing.sticky_sessions else None
