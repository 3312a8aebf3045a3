"""What an engine is at, as its agent reads it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.ids import ModelId
from worker.link.activity import (
    MAX_SEQUENCES,
    EngineActivities,
    EngineActivity,
    EngineActivityRecord,
    new_activity_file,
)

_STEP = EngineActivity("step", ModelId("one"), (1, 2, 3))
_LOAD = EngineActivity("load", ModelId("another/one"))
_TRIAL = EngineActivity("prefill", ModelId("ein Modell für alle"), (-1,))

_WRITER = """
import os, signal, sys
from worker.link.activity import EngineActivityRecord, EngineActivity
record = EngineActivityRecord.open(int(sys.argv[1]))
record.set_ahead(EngineActivity("step", "ahead", (7,)))
record.begin(EngineActivity("load", "before"))
record.begin(EngineActivity("prefill", "last", (8, 9)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def record() -> Iterator[EngineActivityRecord]:
    record = EngineActivityRecord.private()
    yield record
    record.close()


def test_a_record_says_nothing_before_anything_was_written(record: EngineActivityRecord) -> None:
    assert record.read() == EngineActivities()


def test_what_was_written_last_is_read(record: EngineActivityRecord) -> None:
    for work in (_STEP, _LOAD, _TRIAL, _STEP, _TRIAL, _TRIAL, _LOAD, _STEP):
        record.begin(work)
        assert record.read() == EngineActivities(now=work)
    record.end()
    assert record.read() == EngineActivities()
    record.begin(_STEP)
    assert record.read() == EngineActivities(now=_STEP)


def test_what_is_ahead_and_what_is_prepared_stand_beside_that(record: EngineActivityRecord) -> None:
    record.begin(_LOAD)
    record.set_ahead(_STEP)
    record.prepare(_TRIAL)
    assert record.read() == EngineActivities(_LOAD, _STEP, _TRIAL)
    record.set_ahead(None)
    record.prepare(None)
    assert record.read() == EngineActivities(_LOAD)


def test_of_more_sequences_than_there_is_room_for_the_first_are_kept(
    record: EngineActivityRecord,
) -> None:
    sequences = tuple(range(MAX_SEQUENCES + 5))
    record.begin(EngineActivity("step", ModelId("x" * 2000), sequences))
    record.set_ahead(_STEP)
    now, ahead, _ = record.read()
    assert now is not None and now.sequences == sequences[:MAX_SEQUENCES]
    assert ahead == _STEP


def test_a_record_that_is_being_written_leaves_the_one_before(record: EngineActivityRecord) -> None:
    """The byte that makes an entry active is written last."""
    record.begin(_LOAD)
    record._now._active = 2
    record._now._write(_STEP)
    assert record.read() == EngineActivities(now=_LOAD)


@pytest.mark.parametrize("garbage", [0x04, 0x7F, 0xFF])
def test_a_record_that_was_written_over_is_read_without_an_error(
    record: EngineActivityRecord, garbage: int
) -> None:
    record.begin(_STEP)
    memory = record._memory
    memory[1 : len(memory)] = bytes([garbage]) * (len(memory) - 1)
    assert record.read() == EngineActivities()
    memory[0] = garbage
    assert record.read() == EngineActivities()


def test_a_record_outlives_the_process_that_wrote_it() -> None:
    descriptor = new_activity_file()
    record = EngineActivityRecord.open(descriptor)
    command = [sys.executable, "-c", _WRITER, str(descriptor)]
    status = subprocess.run(command, pass_fds=[descriptor], check=False).returncode
    os.close(descriptor)
    assert status == -signal.SIGKILL
    last = EngineActivity("prefill", ModelId("last"), (8, 9))
    assert record.read() == EngineActivities(last, EngineActivity("step", ModelId("ahead"), (7,)))
    record.close()
