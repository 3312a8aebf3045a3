"""What a controller says of its choice, without serving the request and while it does."""

import json
from typing import Any

import pytest

from shared.codec import decode
from shared.messages.engine_status import EngineStatus, PrefixCacheStatus
from shared.messages.events import KeptPrefixes
from shared.messages.prefixes import prefix_links
from shared.messages.request import InferenceRequest
from shared.messages.routes import Route, RouteAnswer
from tests.controller.running import CONTROLLER, Running
from tests.controller.simulated_worker import WAIT_S, SimulatedWorker
from tests.controller.values import DEMO

pytestmark = pytest.mark.anyio

SYSTEM = {"role": "system", "content": "s" * 4000}
QUESTION = {"role": "user", "content": "What is the capital of France?"}


async def asked(cluster: Running, *, skill: str = "chat", **body: Any) -> RouteAnswer:
    payload = json.dumps({"prompt": "x", **body} if "messages" not in body else body).encode()
    answer = await cluster.bus.request(f"mlx.route.local.{skill}", payload, timeout_s=WAIT_S)
    return decode(RouteAnswer, answer.payload)


async def explained(cluster: Running, **body: Any) -> Route:
    answer = await asked(cluster, **body)
    assert answer.route is not None, answer
    return answer.route


async def test_candidates_come_with_forecasts_and_the_others_with_reasons(cluster: Running) -> None:
    await cluster.worker("w1", prefill_ms=5000)
    await cluster.worker("w2")
    await cluster.worker("w3", state="draining")
    route = await explained(cluster)
    assert (route.controller, route.policy, route.skill) == (CONTROLLER, "prefix-aware", "chat")
    assert (route.model, route.worker) == (DEMO, "w2")
    assert "shortest" in route.reason
    soon, late = route.candidates
    assert (soon.worker, late.worker) == ("w2", "w1")
    assert late.forecast_ms.wait == 5000 and soon.forecast_ms.wait == 0
    parts = late.forecast_ms
    assert parts.total == pytest.approx(
        parts.load + parts.wait + parts.restore + parts.prefill + parts.step, abs=0.1
    )
    assert [(out.worker, out.code) for out in route.out] == [("w3", "draining")]


async def test_what_is_kept_of_the_prompt_is_told(cluster: Running) -> None:
    request = InferenceRequest.model_validate({"messages": [SYSTEM, QUESTION]})
    links = [link.hex() for link, _ in prefix_links(DEMO, request)]
    await cluster.worker("w1")
    keeper = await cluster.worker("w2", active_requests=2)
    await keeper.tell_kept(1, links=dict.fromkeys(links[:4], "disk"))
    await cluster.settle()
    route = await explained(cluster, messages=[SYSTEM, QUESTION])
    assert route.worker == "w2"
    kept, cold = route.candidates
    assert (kept.tier, cold.tier, cold.kept) == ("disk", None, 0.0)
    assert 0.9 < kept.kept < 1
    assert kept.forecast_ms.prefill < cold.forecast_ms.prefill


async def test_what_a_worker_has_just_computed_is_expected_to_be_kept(cluster: Running) -> None:
    memory = PrefixCacheStatus(memory_limit_bytes=1)
    engines = [EngineStatus(index=0, state="running", kv_memory=memory)]
    worker = SimulatedWorker(cluster.bus, "w1", engines=engines)
    worker.kept = KeptPrefixes(worker=worker.id, boot_id=worker.boot, number=0, whole=True)
    await worker.join()
    await worker.was_asked()
    await cluster.until(lambda: cluster.claimed(worker))
    await cluster.ask(prompt=None, messages=[SYSTEM, QUESTION])
    dispatch = await worker.next_dispatch()
    await cluster.settle()
    other = {"role": "user", "content": "And of Italy?"}
    (before,) = (await explained(cluster, messages=[SYSTEM, other])).candidates
    assert before.kept == 0
    await worker.emit(dispatch, 0, 5)
    await cluster.settle()
    (after,) = (await explained(cluster, messages=[SYSTEM, other])).candidates
    assert 0.9 < after.kept < 1 and after.tier == "memory"


async def test_nobody_is_explained_too(cluster: Running) -> None:
    await cluster.worker("w1")
    route = await explained(cluster, requires={"accelerator": "metal"})
    assert (route.worker, route.model, route.candidates) == (None, None, [])
    assert [out.code for out in route.out] == ["requirements_unmet"]
    assert "w1 has the accelerator" in route.reason


@pytest.mark.parametrize(
    ("skill", "body", "code", "param"),
    [
        ("no-such", {}, "unknown_skill", None),
        ("chat", {"model": "other"}, "unknown_model", "model"),
        ("chat", {"temperature": "hot"}, "invalid_request", "temperature"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(
    cluster: Running, skill: str, body: dict[str, Any], code: str, param: str | None
) -> None:
    answer = await asked(cluster, skill=skill, **body)
    assert (answer.route, answer.code, answer.param) == (None, code, param)


async def test_the_route_of_a_list_is_that_of_its_first_prompt(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    first = await explained(cluster, prompt=["a", "b" * 10_000])
    assert first.worker == "w1"
    assert first.candidates == (await explained(cluster, prompt="a")).candidates
    assert worker.unread == (0, 0)


async def test_to_ask_for_a_route_sends_nothing_and_counts_nothing(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    for _ in range(3):
        assert (await explained(cluster)).candidates[0].requests == 0
    assert worker.unread == (0, 0)


async def test_who_asks_for_it_gets_the_route_with_the_end(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r", debug=True)
    dispatch = await worker.next_dispatch()
    assert dispatch.route is not None and dispatch.route.worker == "w1"
    await worker.finish(dispatch)
    await inbox.done()
    await cluster.ask(request_id="s")
    assert (await worker.next_dispatch()).route is None


async def test_who_gets_no_worker_hears_with_debug_who_was_out(cluster: Running) -> None:
    await cluster.worker("w1", state="draining")
    inbox = await cluster.ask(request_id="r", debug=True)
    end = await inbox.end()
    assert end.route is not None
    assert [out["code"] for out in end.route["out"]] == ["draining"]
