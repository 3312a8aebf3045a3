"""The activity record of an engine, in memory that it shares with its agent: after any kind of
crash, the record says which model and which sequences the engine was working on.

The engine's thread writes before it touches a model; the agent reads after the engine has exited.
An entry is written into the inactive one of two regions, and then one byte makes that region
active: a crash between the two writes leaves the older entry, never a torn one.
"""

import mmap
import os
import struct
import sys
import tempfile
from typing import Literal, NamedTuple, cast, get_args

from shared.ids import ModelId

Phase = Literal["load", "prompt", "prefill", "step"]

MAX_SEQUENCES = 1024
"""Maximum number of sequences in an entry; further ones are omitted."""

_PHASES: tuple[str, ...] = get_args(Phase)
_HEAD = struct.Struct("<BHH")  # phase, bytes of the model's name, sequences
_NAME_BYTES = 1024
_REGION_BYTES = _HEAD.size + _NAME_BYTES + 8 * MAX_SEQUENCES
_REGIONS = 2
_ENTRY_BYTES = 1 + _REGIONS * _REGION_BYTES


class EngineActivity(NamedTuple):
    """What an engine does for one model.

    Attributes:
        sequences: the sequences that the work is for; those of smoke tests and probes are
            negative. Empty while a model is loaded.
    """

    phase: Phase
    model: ModelId
    sequences: tuple[int, ...] = ()


class EngineActivities(NamedTuple):
    """What the threads of an engine are working on.

    Attributes:
        now: the work of the engine's thread; None while it uses no model.
        ahead: the step that was submitted to the device ahead of time, if any.
        prompt: the prompt that the preparation thread works on.
    """

    now: EngineActivity | None = None
    ahead: EngineActivity | None = None
    prompt: EngineActivity | None = None


_BYTES = len(EngineActivities._fields) * _ENTRY_BYTES


class EngineActivityRecord:
    """The record in shared memory. Each of `now`, `ahead` and `prompt` is written by one thread of
    the engine; the agent calls `read`. A write takes a few microseconds, and less than one if the
    work has not changed."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._now, self._ahead, self._prompt = (
            _Entry(memory, number * _ENTRY_BYTES) for number in range(len(EngineActivities._fields))
        )

    @classmethod
    def open(cls, descriptor: int) -> "EngineActivityRecord":
        """Map the record in a file from `new_activity_file`."""
        return cls(mmap.mmap(descriptor, _BYTES))

    @classmethod
    def private(cls) -> "EngineActivityRecord":
        """Return a record that no other process reads."""
        return cls(mmap.mmap(-1, _BYTES))

    def begin(self, work: EngineActivity) -> None:
        """Record what the engine's thread is about to do with a model."""
        self._now.set(work)

    def end(self) -> None:
        """Record that the engine's thread uses no model. Do not call it while an exception
        propagates: the record must outlive that."""
        self._now.set(None)

    def set_ahead(self, work: EngineActivity | None) -> None:
        """Record a step that was submitted to the device and whose tokens are read later; None
        once they were read."""
        self._ahead.set(work)

    def prepare(self, work: EngineActivity | None) -> None:
        """Record the prompt that is being prepared; None once that is done."""
        self._prompt.set(work)

    def read(self) -> EngineActivities:
        """Return what was written last."""
        return EngineActivities(self._now.get(), self._ahead.get(), self._prompt.get())

    def prompt(self) -> EngineActivity | None:
        """Return the prompt that is being prepared."""
        return self._prompt.get()

    def close(self) -> None:
        self._memory.close()


def new_activity_file() -> int:
    """Return the descriptor of an unnamed file that holds an empty record."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("engine-activity")
        os.truncate(descriptor, _BYTES)
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_BYTES))  # all of it: a full disk fails here, not by a signal later
        file.flush()
        return os.dup(file.fileno())


class _Entry:
    """The entry of one thread: one byte with the number of the active region, or 0, and then the
    regions."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._written: list[EngineActivity | None] = [None] * _REGIONS
        self._active = 0  # the region that was last active, from 1

    def set(self, work: EngineActivity | None) -> None:
        if work is None:
            self._memory[self._at] = 0
            return
        if work not in self._written:
            self._active = self._active % _REGIONS + 1
            self._write(work)
        else:
            self._active = self._written.index(work) + 1
        self._memory[self._at] = self._active

    def _write(self, work: EngineActivity) -> None:
        """Write into the region that `_active` names, before it becomes active."""
        name = work.model.encode()[:_NAME_BYTES]
        sequences = work.sequences[:MAX_SEQUENCES]
        body = struct.pack(
            f"<BHH{len(name)}s{len(sequences)}q",
            _PHASES.index(work.phase), len(name), len(sequences), name, *sequences,
        )  # fmt: skip
        start = self._start(self._active)
        self._memory[start : start + len(body)] = body
        self._written[self._active - 1] = work

    def get(self) -> EngineActivity | None:
        """Return the entry; None also if a crashing engine overwrote it with garbage."""
        active = self._memory[self._at]
        if not 1 <= active <= _REGIONS:
            return None
        start = self._start(active)
        phase, name_bytes, count = _HEAD.unpack_from(self._memory, start)
        if phase >= len(_PHASES) or name_bytes > _NAME_BYTES or count > MAX_SEQUENCES:
            return None
        start += _HEAD.size
        name = self._memory[start : start + name_bytes].decode(errors="replace")
        sequences = struct.unpack_from(f"<{count}q", self._memory, start + name_bytes)
        return EngineActivity(cast(Phase, _PHASES[phase]), ModelId(name), sequences)

    def _start(self, region: int) -> int:
        return self._at + 1 + (region - 1) * _REGION_BYTES
