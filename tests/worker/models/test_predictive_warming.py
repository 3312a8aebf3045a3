"""Models that are warmed because they are usually asked for now, and the history of that."""

import asyncio
import logging
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from shared.ids import ModelId
from shared.settings.worker import PredictiveWarmingSettings as Settings
from tests.worker.kept_models import TOO_LARGE_BYTES, KeptModels
from tests.worker.virtual_time import in_virtual_time
from worker.models.predictive_warming import PredictiveWarming

_INTERVAL_S = 60


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, 9, 0)

    def __call__(self) -> datetime:
        return self.now


class WatchedClock(Clock):
    """Notes when it was asked, and whether there was a file then; sets `enough` the 2nd time."""

    def __init__(self, kept: Path) -> None:
        super().__init__()
        self._kept = kept
        self.asked: list[tuple[float, bool]] = []
        self.enough = asyncio.Event()

    def __call__(self) -> datetime:
        self.asked.append((asyncio.get_running_loop().time(), self._kept.exists()))
        if len(self.asked) == 2:
            self.enough.set()
        return self.now


class Predicted:
    """Models, and what is predicted of their use."""

    def __init__(
        self, kept: Path, *names: str, clock: Clock | None = None, **settings: Any
    ) -> None:
        self.models = KeptModels(*names)
        self.clock = clock or Clock()
        self.warming = PredictiveWarming(
            Settings.model_validate({"enabled": True, "interval_s": _INTERVAL_S, **settings}),
            self.models.keeper,
            kept,
            self.clock,
        )

    def use(self, **counts: int) -> None:
        """Requests come, one for each count."""
        for name, count in counts.items():
            for _ in range(count):
                self.warming.record_request(ModelId(name))

    def propose_and_load(self) -> list[ModelId]:
        self.warming.propose_and_load()
        return self.warming.proposed

    @property
    def loading(self) -> list[str]:
        return self.models.of_state("loading")

    async def run_until(self, condition: asyncio.Event) -> None:
        running = asyncio.create_task(self.warming.run())
        await condition.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    def run_shortly(self) -> None:
        """Run, and stop before anything is to be done."""

        @in_virtual_time
        async def shortly() -> None:
            begun = asyncio.Event()
            asyncio.get_running_loop().call_later(1, begun.set)
            await self.run_until(begun)

        shortly()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "use" / "mac.json"


# Which are loaded.


def test_the_most_used_is_loaded_and_the_others_one_after_another(kept: Path) -> None:
    predicted = Predicted(kept, "tiny", "demo", "coder", "never")
    predicted.use(tiny=2, demo=5, coder=3)
    assert predicted.propose_and_load() == ["demo", "coder", "tiny"]
    assert predicted.loading == ["demo"]
    assert predicted.propose_and_load() == ["coder", "tiny"]
    assert predicted.loading == ["demo"], "the room it will leave is not known yet"
    predicted.models.warm("demo")
    predicted.propose_and_load()
    assert predicted.loading == ["coder"]


def test_one_that_has_no_room_is_passed_and_nobody_goes_for_it(kept: Path) -> None:
    predicted = Predicted(kept, "tiny", "large", "idle")
    predicted.models["large"].size_bytes = TOO_LARGE_BYTES
    predicted.models["idle"].size_bytes = TOO_LARGE_BYTES
    predicted.models.warm("idle")
    predicted.use(large=5, tiny=2)
    assert predicted.propose_and_load() == ["large", "tiny"]
    assert predicted.loading == ["tiny"]
    assert predicted.models.of_state("warm") == ["idle"]


def test_what_is_warm_on_its_way_or_broken_is_not_proposed(kept: Path) -> None:
    predicted = Predicted(kept, "warm", "loading", "broken")
    predicted.use(warm=5, loading=5, broken=5)
    predicted.models.warm("warm")
    predicted.models["loading"].state = "loading"
    predicted.models.fail("broken")
    assert predicted.propose_and_load() == []
    assert predicted.models.of_state("failed") == ["broken"]


def test_what_is_hardly_used_is_not_loaded_and_later_neither_what_was(kept: Path) -> None:
    predicted = Predicted(kept, "tiny", min_requests_per_h=2)
    predicted.use(tiny=2)
    assert predicted.propose_and_load() == []
    predicted.use(tiny=1)
    predicted.clock.now += timedelta(hours=1)
    assert predicted.propose_and_load() == []
    predicted.clock.now -= timedelta(hours=1)
    assert predicted.propose_and_load() == ["tiny"]


def test_switched_off_it_counts_loads_and_keeps_nothing(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.mkdir()
    kept.write_text("broken")
    predicted = Predicted(kept, "tiny", enabled=False)
    predicted.use(tiny=9)
    assert predicted.propose_and_load() == []
    asyncio.run(predicted.warming.run())  # returns at once
    assert kept.read_text() == "broken"
    assert caplog.records == []


# While it runs, and over a restart.


@in_virtual_time
async def test_it_looks_ahead_and_keeps_its_history_at_each_interval(kept: Path) -> None:
    clock = WatchedClock(kept)
    predicted = Predicted(kept, "tiny", clock=clock)
    await predicted.run_until(clock.enough)
    assert clock.asked == [(_INTERVAL_S, False), (2 * _INTERVAL_S, True)]


def test_what_was_learnt_survives_a_restart(kept: Path) -> None:
    before = Predicted(kept, "tiny", "demo")
    before.use(tiny=2, demo=5)
    before.run_shortly()
    after = Predicted(kept, "tiny", "demo")
    after.clock.now += timedelta(minutes=10)
    assert after.propose_and_load() == ["demo", "tiny"]
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"null", b"[]", b"5", b"{}", b"[" * 10_000),
        b'{"day": null, "days": 0, "models": []}',
    ],
)
def test_a_broken_file_is_not_used_which_is_said_and_is_replaced(
    content: bytes, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.mkdir()
    kept.write_bytes(content)
    predicted = Predicted(kept, "tiny")
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING and str(kept) in warning.getMessage()
    predicted.use(tiny=2)
    predicted.run_shortly()
    assert Predicted(kept, "tiny").propose_and_load() == ["tiny"]
    assert caplog.records == [warning]


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "use"
    in_the_way.write_text("a file where the folder should be")
    predicted = Predicted(in_the_way / "mac.json", "tiny")
    predicted.use(tiny=2)
    predicted.run_shortly()
    assert predicted.propose_and_load() == ["tiny"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "cannot be written" in caplog.records[-1].getMessage()


def test_the_first_start_without_a_file_is_no_reason_to_warn(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predicted = Predicted(kept, "tiny")
    predicted.run_shortly()
    assert caplog.records == []
    assert orjson.loads(kept.read_bytes())["models"] == {}
