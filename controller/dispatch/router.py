"""Selects a worker for a request: builds its route query, excludes workers, applies the routing
policy."""

import contextlib
from collections.abc import Callable, Collection, Hashable
from copy import deepcopy

from controller.dispatch.explanation import explained
from controller.dispatch.query_builder import route_query_of
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry
from controller.fleet.session_affinity import SessionAffinity
from controller.fleet.worker_view import WorkerView
from controller.requests.request import INPUTS_PER_PART, TrackedRequest, WorkerRejection
from controller.routing import (
    TEMPORARY,
    NoRoute,
    Policy,
    RouteDecision,
    RouteQuery,
    find_ineligibility,
    most_relevant_reason,
    policy_named,
    select_worker,
)
from shared.errors import Unavailable
from shared.ids import ControllerId, ModelId, WorkerId
from shared.messages.request import InferenceRequest
from shared.messages.routes import Route
from shared.settings import ClusterSettings
from shared.settings.controller import RoutingSettings

_PARTS_AT_A_TIME = 2
"""Parts of a list of texts that a worker has, so that it has work until the next part arrives."""
_MAX_NAMED = 10
"""Maximum number of rejections that an error message lists; the others are counted."""


class Router:
    """
    Args:
        rng: returns a random number from 0 to 1.

    Attributes:
        homes: the worker that served each session last.
    """

    def __init__(
        self,
        controller: ControllerId,
        settings: ClusterSettings,
        registry: NodeRegistry,
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
        """Apply new settings from now on."""
        routing = settings.controller.routing
        if routing.policy != self._policy.name:
            self._policy = policy_named(routing.policy)
        self._rules = settings.worker.kv_cache.prompt_rules
        self.homes.ttl_s = _session_ttl_s(routing)

    def query(self, request: TrackedRequest, now: float) -> RouteQuery:
        """Return the route query of a request."""
        affinity = request.affinity
        home = self.homes.home(affinity, now) if affinity is not None else None
        if request.query is not None:
            return request.query._replace(home=home)
        relevant = request.started or request.contents.reasoning_effort == "none"
        may_reason = relevant and self._registry.has_reasoning(request.models)
        return route_query_of(request, self._rules, home, may_reason=may_reason)

    def select(self, request: TrackedRequest, query: RouteQuery, now: float) -> RouteDecision:
        """Select a worker that did not reject the request; one on which an attempt failed only if
        there is no other.

        Raises:
            NoRoute: no worker can serve the request now.
        """
        excluded = {id for id, each in request.rejected.items() if not self._changed(id, each)}
        if request.failures.workers:
            with contextlib.suppress(NoRoute):
                also_excluded = {*excluded, *request.failures.workers}
                return self._choose(query, also_excluded, self._policy, now)
        return self._choose(query, excluded, self._policy, now)

    def splits(self, request: TrackedRequest, now: float) -> bool:
        """Whether a request is served in parts: a list of prompts, more choices than any worker
        decodes at once, or many texts to embed."""
        body = request.contents
        if body.embeds:
            return body.choices > INPUTS_PER_PART
        if len(body.prompts) > 1 or body.n == 1:
            return len(body.prompts) > 1
        _, max_slots = self.capacity(request, now)
        return body.n > max_slots > 0 and body.resume is None

    def capacity(self, request: TrackedRequest, now: float) -> tuple[int, int]:
        """Return the batch slots of all workers that can serve a request, in use or not, and the
        maximum of one worker. Counts workers that have its first available model; only those on
        which the model is warm, if there are any."""
        body = request.contents
        query = RouteQuery(request.models, body.requires, body.level)
        for model in request.models:
            views = self._registry.warm_workers_with(model)
            if not views or body.requires is not None:
                views = [
                    view
                    for view in self._registry.workers_with(model)
                    if (found := find_ineligibility(view, model, query, now)) is None
                    or found.is_temporary
                ]
            slots = [_slots(view, model, body) for view in views]
            if sum(slots):
                return sum(slots), max(slots)
        return 0, 0

    def explain(self, request: TrackedRequest, now: float) -> Route:
        """Return where a request would go now, and why."""
        query = self.query(request, now)
        try:
            return self.route(request, query, self._choose(query, (), deepcopy(self._policy), now))
        except NoRoute as error:
            return self.route(request, query, error)

    def route(
        self, request: TrackedRequest, query: RouteQuery, decision: RouteDecision | NoRoute
    ) -> Route:
        """Return the explanation of a routing decision."""
        return explained(self._controller, self._policy.name, request.skill, query, decision)

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
        """Whether the worker was restarted since its rejection, or has reported its state since a
        temporary rejection."""
        view = self._registry.worker(worker)
        if view is None or view.report.boot_id != rejection.boot_id:
            return view is not None
        return is_temporary(rejection) and view.seen_at > rejection.seen_at


def is_temporary(rejection: WorkerRejection) -> bool:
    """Whether the worker may accept the request later: it is short of capacity, said when to retry,
    or did not answer, in which case it may be restarted."""
    refusal = rejection.refusal
    return refusal.retry_after_ms is not None or refusal.code in (
        *TEMPORARY, "worker_lost", "not_claimed", "stale_term"
    )  # fmt: skip


def _slots(view: WorkerView, model: ModelId, body: InferenceRequest) -> int:
    """Return how many choices of a request a worker should have at a time."""
    if body.embeds:
        return _PARTS_AT_A_TIME * INPUTS_PER_PART
    return view.models[model].speed.rows or view.report.max_batch_size


def waiting_kind(request: TrackedRequest, query: RouteQuery) -> Hashable:
    """Return a key: requests with the same key can be served by the same workers, and the queues
    have room for all of them or for none. None for a request that was rejected or failed on some
    worker."""
    if request.rejected or request.failures.workers:
        return None
    requires = query.requires
    requirements = requires and requires.model_dump_json()
    return request.client, tuple(query.models), requirements, query.abilities


def all_rejected(request: TrackedRequest) -> Unavailable:
    """Return the error of a request that the workers rejected, with the code of the most relevant
    rejection; among equally relevant ones, the latest."""
    refusals = [each.refusal for each in request.rejected.values()]
    nearest_refusal = most_relevant_reason(refusals[::-1])
    waits = [each.retry_after_ms for each in refusals if each.retry_after_ms is not None]
    others = len(refusals) - _MAX_NAMED
    more = [f"{others} others refused"] if others > 0 else []
    return Unavailable(
        "; ".join([*more, *(refusal.message for refusal in refusals[-_MAX_NAMED:])]),
        code=nearest_refusal.code,
        param=nearest_refusal.param,
        retry_after_ms=min(waits, default=None),
    )


def _session_ttl_s(routing: RoutingSettings) -> float | None:
    return routing.session_ttl_s if routing.sticky_sessions else None
