"""The decision alone, in this process: which of so many workers a request goes to."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from benchmarks.routing_load import Prompts
from benchmarks.simulated_fleet import report, skills
from controller.fleet.registry import Registry
from controller.requests.request import Request
from controller.requests.request_need import need_of
from controller.routing import Need, choose, policy_named
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

    def keepers(self, link: str) -> Collection[WorkerId]:
        return self._keepers.get(link, ())


def decision_us(workers: int) -> dict[str, float]:
    """Microseconds of CPU a request: to say what it needs, its prompt's links included, and to
    choose one of so many workers, which keep what such requests left there."""
    registry, kept, drawn = Registry(3.0), _Kept(), Random(1)
    for number in range(workers):
        registry.on_worker_event(WorkerEvent(type="joined", worker=report(number)), 0.0)
    requests = _requests()
    begun = time.process_time()
    needs = [_need(request) for request in requests]
    need_us = (time.process_time() - begun) / len(requests) * 1e6
    policy = policy_named("prefix-aware")

    for view in registry.workers:
        view.claimed = True

    def decide(need: Need) -> WorkerId:
        return choose(need, registry, kept, policy, now=0.0, draw=drawn.random).worker.id

    for need in needs[: len(needs) // 2]:
        kept.add(decide(need), [link for link, _ in need.links(need.models[0])])
    return {"need_us": need_us, "choose_us": _cpu_us(decide, needs)}


def _requests() -> list[Request]:
    prompts, served = Prompts(7), skills()
    made = []
    for number in range(_REQUESTS):
        skill, body = prompts.make(number)
        made.append(
            Request.arrived(
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


def _need(request: Request) -> Need:
    need = need_of(request, (), None)
    need.links(ModelId(request.models[0]))
    return need


def _cpu_us(decide: Callable[[Need], object], needs: Sequence[Need]) -> float:
    begun = time.process_time()
    for need in needs:
        decide(need)
    return (time.process_time() - begun) / len(needs) * 1e6
