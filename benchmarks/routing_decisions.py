"""The decision alone, in this process: which of so many workers a request goes to."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from benchmarks.routing_load import Prompts
from benchmarks.simulated_fleet import report, skills
from controller.dispatch.query_builder import route_query_of
from controller.fleet.registry import NodeRegistry
from controller.requests.request import TrackedRequest
from controller.routing import RouteQuery, policy_named, select_worker
from shared.ids import ClientName, ModelId, RequestId, WorkerId
from shared.messages.events import Tier, WorkerEvent
from shared.messages.request import InferenceRequest

_REQUESTS = 2000
_CLIENT = ClientName("bench")


class _Kept:
    """The links that each worker keeps."""

    def __init__(self) -> None:
        self._links: dict[WorkerId, dict[str, Tier]] = {}
        self._keepers: dict[str, set[WorkerId]] = {}

    def add(self, worker: WorkerId, links: Sequence[str]) -> None:
        self._links.setdefault(worker, {}).update(dict.fromkeys(links, "memory"))
        for link in links:
            self._keepers.setdefault(link, set()).add(worker)

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        return self._links.get(worker, {})

    def workers_caching(self, link: str) -> Collection[WorkerId]:
        return self._keepers.get(link, ())


def decision_us(workers: int) -> dict[str, float]:
    """Microseconds of CPU a request: to say what it needs, its prompt's links included, and to
    choose one of so many workers, which keep what such requests left there."""
    registry, kept, drawn = NodeRegistry(3.0), _Kept(), Random(1)
    for number in range(workers):
        registry.on_worker_event(WorkerEvent(type="joined", worker=report(number)), 0.0)
    requests = _requests()
    begun = time.process_time()
    needs = [_need(request) for request in requests]
    need_us = (time.process_time() - begun) / len(requests) * 1e6
    policy = policy_named("prefix-aware")

    for view in registry.workers:
        view.claimed = True

    def decide(query: RouteQuery) -> WorkerId:
        return select_worker(query, registry, kept, policy, now=0.0, rng=drawn.random).worker.id

    for query in needs[: len(needs) // 2]:
        kept.add(decide(query), [link for link, _ in query.links(query.models[0])])
    return {"need_us": need_us, "choose_us": _cpu_us(decide, needs)}


def _requests() -> list[TrackedRequest]:
    prompts, served = Prompts(7), skills()
    made = []
    for number in range(_REQUESTS):
        skill, body = prompts.make(number)
        made.append(
            TrackedRequest.arrived(
                _CLIENT,
                skill,
                ["_INBOX.x"],
                InferenceRequest(**body),
                served[skill],
                request_id=RequestId(f"{number}"),
                seed=1,
                now=0.0,
            )
        )
    return made


def _need(request: TrackedRequest) -> RouteQuery:
    query = route_query_of(request, (), None)
    query.links(ModelId(request.models[0]))
    return query


def _cpu_us(decide: Callable[[RouteQuery], object], needs: Sequence[RouteQuery]) -> float:
    begun = time.process_time()
    for query in needs:
        decide(query)
    return (time.process_time() - begun) / len(needs) * 1e6
