"""Finds a worker for a request: what it asks for, who is out for it, who of the others is
picked."""

import contextlib
from collections.abc import Callable, Collection, Hashable
from copy import deepcopy

from controller.fleet.kept_prefixes import KeptByWorkers
from controller.fleet.registry import Registry
from controller.fleet.session_homes import SessionHomes
from controller.requests.explanation import explained
from controller.requests.request import Rejection, Request
from controller.requests.request_need import need_of
from controller.routing import (
    PASSING,
    Decision,
    Need,
    NoRoute,
    Policy,
    choose,
    find_obstacle,
    policy_named,
)
from shared.errors import Unavailable
from shared.ids import ControllerId, WorkerId
from shared.messages.routes import Route
from shared.settings import ClusterSettings
from shared.settings.tree import Routing

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
        prefixes: KeptByWorkers,
        draw: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._prefixes = prefixes
        self._draw = draw
        self._rules = settings.worker.kv_cache.prompt_rules
        self._policy = policy_named(settings.controller.routing.policy)
        self.homes = SessionHomes(prefixes, ttl_s=_session_ttl_s(settings.controller.routing))

    def configure(self, settings: ClusterSettings) -> None:
        """Go by other settings, from now on."""
        routing = settings.controller.routing
        if routing.policy != self._policy.name:
            self._policy = policy_named(routing.policy)
        self._rules = settings.worker.kv_cache.prompt_rules
        self.homes.ttl_s = _session_ttl_s(routing)

    def need(self, request: Request, now: float) -> Need:
        """What it asks of a worker."""
        affinity = request.affinity
        home = self.homes.home(affinity, now) if affinity is not None else None
        if request.need is not None:
            return request.need._replace(home=home)
        hides = request.started or request.contents.reasoning_effort == "none"
        reasons = hides and self._registry.has_reasoning(request.models)
        return need_of(request, self._rules, home, reasons=reasons)

    def find(self, request: Request, need: Need, now: float) -> Decision:
        """A worker that did not reject it, nor fail before unless there is no other.

        Raises:
            NoRoute: there is none.
        """
        out = {id for id, each in request.rejected.items() if not self._changed(id, each)}
        if request.tried:
            with contextlib.suppress(NoRoute):
                return self._choose(need, {*out, *request.tried}, self._policy, now)
        return self._choose(need, out, self._policy, now)

    def splits(self, request: Request, now: float) -> bool:
        """Whether it is served in parts: a list of prompts, or more choices than any worker decodes
        at once."""
        body = request.contents
        if len(body.prompts) > 1 or body.n == 1:
            return len(body.prompts) > 1
        _, most = self.capacity(request, now)
        return body.n > most > 0 and body.resume is None

    def capacity(self, request: Request, now: float) -> tuple[int, int]:
        """Batch slots of the workers that could serve a request if they had room, and the most that
        one of them has: for its first model that any of them has; of those that have it warm, if
        there are some."""
        body = request.contents
        need = Need(request.models, body.requires, body.level)
        for model in request.models:
            views = self._registry.warm(model)
            if not views or body.requires is not None:
                views = [
                    view
                    for view in self._registry.holding(model)
                    if (found := find_obstacle(view, model, need, now)) is None or found.passes
                ]
            slots = [view.models[model].speed.rows or view.report.max_batch_size for view in views]
            if sum(slots):
                return sum(slots), max(slots)
        return 0, 0

    def explain(self, request: Request, now: float) -> Route:
        """Where it would go now, and why."""
        need = self.need(request, now)
        try:
            return self.route(request, need, self._choose(need, (), deepcopy(self._policy), now))
        except NoRoute as error:
            return self.route(request, need, error)

    def route(self, request: Request, need: Need, decided: Decision | NoRoute) -> Route:
        """What was decided for a request, and why."""
        return explained(self._controller, self._policy.name, request.skill, need, decided)

    def _choose(
        self, need: Need, excluded: Collection[WorkerId], policy: Policy, now: float
    ) -> Decision:
        return choose(
            need,
            self._registry,
            self._prefixes,
            policy,
            now=now,
            draw=self._draw,
            excluded=excluded,
        )

    def _changed(self, worker: WorkerId, rejection: Rejection) -> bool:
        """Whether who rejected it was started again, or has told since how it stands now."""
        view = self._registry.worker(worker)
        if view is None or view.report.boot_id != rejection.boot_id:
            return view is not None
        return passes(rejection) and view.seen_at > rejection.seen_at


def passes(rejection: Rejection) -> bool:
    """Whether the worker may get over it: also one that says when to come again; and one that is
    not there, or does not answer: it may be started again."""
    refusal = rejection.refusal
    return refusal.retry_after_ms is not None or refusal.code in (
        *PASSING, "worker_lost", "not_claimed"
    )  # fmt: skip


def waiting_kind(request: Request, need: Need) -> Hashable:
    """Who is alike here finds a worker where this one does; None for who was rejected, or failed,
    somewhere."""
    if request.rejected or request.tried:
        return None
    requires = need.requires
    return tuple(need.models), requires and requires.model_dump_json(), need.abilities


def all_rejected(request: Request) -> Unavailable:
    """Why no worker takes it, as they said; the code is of one that gets over it, if any does."""
    refusals = [each.refusal for each in request.rejected.values()]
    nearest = ([each for each in refusals if each.code in PASSING] or refusals)[-1]
    waits = [each.retry_after_ms for each in refusals if each.retry_after_ms is not None]
    others = len(refusals) - _MOST_NAMED
    more = [f"{others} others refused"] if others > 0 else []
    return Unavailable(
        "; ".join([*more, *(refusal.message for refusal in refusals[-_MOST_NAMED:])]),
        code=nearest.code,
        param=nearest.param,
        retry_after_ms=min(waits, default=None),
    )


def _session_ttl_s(routing: Routing) -> float | None:
    return routing.session_ttl_s if routing.sticky_sessions else None
