"""What an engine is at, written into memory that its agent shares: when the engine dies, however it
dies, the record says which model and which sequences it was busy with.

The engine writes before it touches a model, on its own thread; the agent reads once the engine is
gone. A record is written beside the one that counts, and then one byte makes it count: a death
between the two leaves the older one, never a torn one.
"""

import mmap
import os
import struct
import sys
import tempfile
from typing import Literal, NamedTuple, cast, get_args

from shared.ids import ModelId

Phase = Literal["load", "prompt", "prefill", "step"]

MOST_SEQUENCES = 1024
"""Of one record; more are left out."""

_PHASES: tuple[str, ...] = get_args(Phase)
_HEAD = struct.Struct("<BHH")  # phase, bytes of the model's name, sequences
_NAME_BYTES = 1024
_REGION_BYTES = _HEAD.size + _NAME_BYTES + 8 * MOST_SEQUENCES
_REGIONS = 2
_PLACE_BYTES = 1 + _REGIONS * _REGION_BYTES


class EngineActivity(NamedTuple):
    """What an engine does for one model.

    Attributes:
        sequences: that the work is for, by the engine's numbers; those of a model's trials are
            negative. There are none while a model is loaded.
    """

    phase: Phase
    model: ModelId
    sequences: tuple[int, ...] = ()


class ActivityKind(NamedTuple):
    """What an engine is at.

    Attributes:
        now: what its thread does; None while that is with no model.
        ahead: the step that the device was asked for before its turn, if any.
        prompt: the prompt that is prepared, on a thread of its own.
    """

    now: EngineActivity | None = None
    ahead: EngineActivity | None = None
    prompt: EngineActivity | None = None


_BYTES = len(ActivityKind._fields) * _PLACE_BYTES


class ActivityRecord:
    """The record in shared memory. Each of `now`, `ahead` and `prompt` belongs to one thread of
    the engine; `read` is the agent's. To write takes a few microseconds, and less than one where
    the work is that of before."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._now, self._ahead, self._prompt = (
            _Place(memory, number * _PLACE_BYTES) for number in range(len(ActivityKind._fields))
        )

    @classmethod
    def open(cls, descriptor: int) -> "ActivityRecord":
        """The record in a file of `new_activity_file`."""
        return cls(mmap.mmap(descriptor, _BYTES))

    @classmethod
    def private(cls) -> "ActivityRecord":
        """One that nobody reads but this process."""
        return cls(mmap.mmap(-1, _BYTES))

    def begin(self, work: EngineActivity) -> None:
        """The engine's thread turns to a model."""
        self._now.set(work)

    def end(self) -> None:
        """It is done with models for now. Not to be called on the way out of an exception: the
        record must outlive that."""
        self._now.set(None)

    def ask_ahead(self, work: EngineActivity | None) -> None:
        """The device was asked for this step, whose tokens are read later; None: they were."""
        self._ahead.set(work)

    def prepare(self, work: EngineActivity | None) -> None:
        """A prompt is prepared; None: it was."""
        self._prompt.set(work)

    def read(self) -> ActivityKind:
        """What was written last."""
        return ActivityKind(self._now.get(), self._ahead.get(), self._prompt.get())

    def close(self) -> None:
        self._memory.close()


def new_activity_file() -> int:
    """A descriptor of a file without a name, with room for a record that says nothing."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("engine-activity")
        os.truncate(descriptor, _BYTES)
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_BYTES))  # all of it: a full disk is told now, not by a signal later
        file.flush()
        return os.dup(file.fileno())


class _Place:
    """Where one thread writes: the number of the region that counts, or 0, and the regions."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._written: list[EngineActivity | None] = [None] * _REGIONS
        self._counts = 0  # the region written last, from 1

    def set(self, work: EngineActivity | None) -> None:
        if work is None:
            self._memory[self._at] = 0
            return
        if work not in self._written:
            self._counts = self._counts % _REGIONS + 1
            self._write(work)
        else:
            self._counts = self._written.index(work) + 1
        self._memory[self._at] = self._counts

    def _write(self, work: EngineActivity) -> None:
        """Into the region that does not count."""
        name = work.model.encode()[:_NAME_BYTES]
        sequences = work.sequences[:MOST_SEQUENCES]
        body = struct.pack(
            f"<BHH{len(name)}s{len(sequences)}q",
            _PHASES.index(work.phase), len(name), len(sequences), name, *sequences,
        )  # fmt: skip
        start = self._start(self._counts)
        self._memory[start : start + len(body)] = body
        self._written[self._counts - 1] = work

    def get(self) -> EngineActivity | None:
        """None also where a dying engine wrote over it."""
        counts = self._memory[self._at]
        if not 1 <= counts <= _REGIONS:
            return None
        start = self._start(counts)
        phase, name_bytes, count = _HEAD.unpack_from(self._memory, start)
        if phase >= len(_PHASES) or name_bytes > _NAME_BYTES or count > MOST_SEQUENCES:
            return None
        start += _HEAD.size
        name = self._memory[start : start + name_bytes].decode(errors="replace")
        sequences = struct.unpack_from(f"<{count}q", self._memory, start + name_bytes)
        return EngineActivity(cast(Phase, _PHASES[phase]), ModelId(name), sequences)

    def _start(self, counts: int) -> int:
        return self._at + 1 + (counts - 1) * _REGION_BYTES
