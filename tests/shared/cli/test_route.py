"""`cluster route` against a controller with simulated workers."""

import json

import pytest

from shared.bus import Bus
from tests.access.roles import as_tester
from tests.controller.running import running_controller
from tests.processes import NatsProcess
from tests.shared.cli.simulated_cluster import Ran, run

pytestmark = pytest.mark.anyio


async def explained(server: NatsProcess, own_bus: Bus, *arguments: str) -> Ran:
    async with running_controller(as_tester(server.url), own_bus) as cluster:
        await cluster.worker("w1", prefill_ms=2500)
        await cluster.worker("w2")
        await cluster.worker("w3", state="draining")
        return await run("route", "--nats", server.url, *arguments, role="client")


async def test_it_says_who_is_chosen_and_why_and_what_keeps_the_others(
    server: NatsProcess, own_bus: Bus
) -> None:
    ran = await explained(server, own_bus, "--explain", "What is the capital of France?")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("demo on w2: ")
    assert "policy prefix-aware" in ran.out
    rows = [line.split() for line in lines if line.startswith(("w1 ", "w2 "))]
    assert [row[0] for row in rows] == ["w2", "w1"]
    assert rows[1][1] == "2.5s"
    assert "w3: is draining" in ran.out
    assert max(map(len, lines)) <= 80


async def test_a_request_may_be_json_and_so_may_the_answer(
    server: NatsProcess, own_bus: Bus
) -> None:
    body = json.dumps({"prompt": "x", "requires": {"accelerator": "metal"}})
    ran = await explained(server, own_bus, "--json", "--explain", body)
    route = json.loads(ran.out)
    assert "worker" not in route and route["candidates"] == []
    assert {out["worker"]: out["code"] for out in route["out"]} == {
        "w1": "requirements_unmet", "w2": "requirements_unmet", "w3": "draining",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--explain", '{"prompt":'), "REQUEST is not valid JSON"),
        (("--explain", '{"prompt": 5}'), "prompt"),
        (("--explain", '{"prompt": "x", "skill": "y"}'), "skill"),
        (("--explain", "x", "--skill", "no such"), "skill"),
        (("--explain", "x", "--skill", "code"), "no skill 'code'; there are: chat"),
        ((), "--explain"),
    ],
)
async def test_what_is_wrong_is_said(
    server: NatsProcess, own_bus: Bus, arguments: tuple[str, ...], says: str
) -> None:
    ran = await explained(server, own_bus, *arguments)
    assert ran.status != 0 and says in ran.err and "Traceback" not in ran.err
