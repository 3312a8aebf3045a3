"""The whole cluster in simulated time, with whatever happens to it: it keeps its promises, and the
judge would notice if it did not."""

import secrets
from collections.abc import Sequence

import pytest

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.judge import broken, judge, shrunk
from tests.simulation.kept_scripts import KEPT
from tests.simulation.loop import SimulatedLoop
from tests.simulation.plants import PLANTS, Plant
from tests.simulation.script import Kill, Step, Stop, Wait, random_script
from tests.tiers import long_form

_CHUNK = 100
_MOST = 3000


@pytest.mark.parametrize("number", range(8))
def test_whatever_happens_every_promise_is_kept(number: int) -> None:
    """The same scripts each time; `make simulate` tries new ones."""
    assert judge("each time", range(number * _CHUNK, (number + 1) * _CHUNK)) == []


@pytest.mark.parametrize("number", [long_form(number) for number in range(20)])
def test_new_scripts_break_no_promise_either(number: int) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    assert judge(seed, range(_CHUNK)) == []


@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
def test_what_once_broke_a_promise_does_so_no_more(script: Sequence[Step]) -> None:
    assert broken(script) == []


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what)
def test_random_scripts_find_a_bug(plant: Plant) -> None:
    with plant.planted():
        scripts = (random_script(f"planted/{number}") for number in range(_MOST))
        assert any(plant.promise in line for script in scripts for line in broken(script))


def test_a_script_always_does_the_same() -> None:
    assert _said("again/1") == _said("again/1") != _said("again/2")


def _said(seed: str) -> list[tuple[float, str, str, bytes]]:
    """All that is published, and when."""
    said: list[tuple[float, str, str, bytes]] = []
    loop = SimulatedLoop()

    async def life() -> None:
        cluster = SimulatedCluster()
        cluster.network.on_publish.append(
            lambda sender, subject, payload: said.append((loop.time(), sender, subject, payload))
        )
        await cluster.start()
        for step in random_script(seed):
            await cluster.do(step)
        await cluster.settle()

    loop.run(life())
    return said


def test_a_script_shrinks_to_what_breaks_it() -> None:
    needed: list[Step] = [Stop("c-1", 1.2), Kill("w-1")]
    script = [Wait(0.1), needed[0], Wait(0.2), Wait(0.3), Wait(0.4), needed[1], Wait(0.5)]
    assert shrunk(script, lambda steps: all(step in steps for step in needed)) == needed
