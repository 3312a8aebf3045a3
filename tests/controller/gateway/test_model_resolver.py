"""What may stand as `model`, and whether the gateway is ready, by what workers there are."""

import time
from typing import Any, cast

import pytest

from controller.gateway.health_poller import HealthPoller
from controller.gateway.model_resolver import ModelResolver
from shared.client import Cluster
from shared.errors import RequestError, Unavailable
from shared.ids import ModelId, SkillName
from shared.messages.health import ClusterHealth
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport
from tests.controller.values import models, report

pytestmark = pytest.mark.anyio

CHAT, CODE = SkillName("chat"), SkillName("code")
DEMO, CODER = ModelId("demo"), ModelId("coder")


class Told:
    """A cluster of which only the health is known."""

    def __init__(self, *workers: WorkerReport) -> None:
        skills = {CHAT: [DEMO, CODER], CODE: [CODER]}
        self._health = ClusterHealth(
            status="ready", skills=skills, controllers=[], workers=list(workers)
        )

    async def health(self) -> ClusterHealth:
        return self._health


async def directory(*workers: WorkerReport) -> ModelResolver:
    told = ModelResolver(
        HealthPoller(cast(Cluster, Told(*workers))), {ModelId("gpt"): "chat", ModelId("c"): "coder"}
    )
    await told.list_models()
    return told


def worker(state: str, **states: Any) -> WorkerReport:
    return report("w", state=state, models=models(**states))


@pytest.mark.parametrize("state", ["starting", "warming", "ready"])
async def test_what_a_worker_has_that_takes_requests_or_starts_may_be_asked_for(
    state: str,
) -> None:
    told = await directory(worker(state, demo="available"))
    listed = await told.list_models()
    assert {name: each.skills for name, each in listed.items()} == {
        "demo": [CHAT], "chat": [CHAT], "gpt": [CHAT],
    }  # fmt: skip
    assert told.unavailability is None


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [worker("draining", demo="warm")],
        [worker("unhealthy", demo="warm")],
        [worker("ready", demo="failed")],
        [worker("ready", other="warm")],
    ],
    ids=["nobody", "draining", "unhealthy", "failed", "of no skill"],
)
async def test_where_nothing_may_be_asked_for_it_is_not_ready(workers: list[WorkerReport]) -> None:
    told = await directory(*workers)
    assert await told.list_models() == {}
    assert isinstance(told.unavailability, Unavailable) and told.unavailability.code == "no_worker"


async def test_what_a_model_means_is_known_also_while_nobody_has_it() -> None:
    """So that who asks for it waits for a worker, and hears of no unknown model."""
    told = await directory(worker("ready", demo="warm"))
    assert await told.resolve("coder") == (CHAT, CODER)
    assert await told.resolve("code") == (CODE, None)
    assert await told.default_model() == "chat"


async def test_it_tells_what_a_model_can_and_how_much_it_reads() -> None:
    one = ModelStatus(id=DEMO, state="warm", abilities=["schema"], max_context_tokens=4096)
    other = ModelStatus(id=DEMO, state="warm", abilities=["tools"], max_context_tokens=8192)
    told = await directory(report("a", models=[one]), report("b", models=[other]))
    for name in ("demo", "chat", "gpt"):
        listed = (await told.list_models())[name]
        assert (listed.context_tokens, listed.abilities) == (8192, ["tools", "schema"])
    assert abs(listed.created - time.time()) < 60
    assert (await told.list_models())["gpt"].created == listed.created


async def test_it_tells_what_workers_warn_of_a_model_once() -> None:
    told = [
        report(name, models=[ModelStatus(id=DEMO, state="warm", warnings=warnings)])
        for name, warnings in (("a", ["assumed"]), ("b", ["assumed", "left out"]))
    ]
    assert (await (await directory(*told)).list_models())["chat"].warnings == [
        "assumed",
        "left out",
    ]


async def test_rows_are_told_to_be_alone_where_they_are_on_any_worker() -> None:
    why = "log-probabilities differ"
    new = ModelStatus(id=DEMO, state="available")
    one = ModelStatus(id=DEMO, state="warm", batching="together")
    other = ModelStatus(id=DEMO, state="warm", batching="alone", batching_reason=why)
    for statuses, expected in (
        ([new], (None, None)),
        ([new, one], ("together", None)),
        ([new, one, other], ("alone", why)),
    ):
        workers = [report(f"w{number}", models=[each]) for number, each in enumerate(statuses)]
        listed = (await (await directory(*workers)).list_models())["demo"]
        assert (listed.batching, listed.batching_reason) == expected


async def test_an_unknown_name_is_told_all_that_are_listed() -> None:
    told = await directory(worker("ready", demo="warm"))
    with pytest.raises(RequestError, match=r"there are: chat, demo, gpt$"):
        await told.resolve("gpt-17")
    with pytest.raises(RequestError, match=r"there are: demo$"):
        await told.resolve("gpt-17", ["demo"])
