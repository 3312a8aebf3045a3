"""Whether one more busy engine pays, if engines share the cores of a machine.

Without a GPU, part of each forward pass keeps only one core busy (MLX), so that two engines prefill
more than one engine with all cores. But each engine reads the weights for every step, and reads
them more slowly with fewer threads: a few rows are better decoded together in one engine. Amdahl's
law, with serial shares measured with MLX 0.32.4 and OpenBLAS on two x86-64 cores
(docs/decisions.md, 2026-11-26).
"""

from dataclasses import dataclass

_SERIAL_PREFILL = 0.5
_SERIAL_STEP = 0.25
"""Serial shares of the prefill of a prompt, and of the fixed part of a step."""
_MIN_GAIN = 0.9
"""An engine becomes busy, or is left to become idle, only if that saves a tenth of the machine's
time."""


@dataclass(frozen=True, slots=True)
class TypicalRequestCost:
    """What a typical request takes, in milliseconds with one thread.

    Attributes:
        prompt_ms: prefill of the part of its prompt that is not cached.
        step_ms, row_ms: a step takes `step_ms`, and `row_ms` per row.
    """

    prompt_ms: float
    answer_tokens: float
    step_ms: float
    row_ms: float

    @classmethod
    def measured(
        cls, prompt_ms: float, answer_tokens: float, step_ms: float, row_ms: float, threads: float
    ) -> "TypicalRequestCost":
        """Convert durations that were measured with `threads` threads."""
        return cls(
            prompt_ms / _share(_SERIAL_PREFILL, threads),
            answer_tokens,
            step_ms / _share(_SERIAL_STEP, threads),
            row_ms,
        )


def scale_up_cost_ms(work: TypicalRequestCost, busy: int, sequences: int, cores: int) -> float:
    """Return the milliseconds that all sequences together lose if one more engine than `busy` has
    work, beyond the required gain; negative if they gain."""
    before = _machine_ms(work, busy, sequences, cores)
    return sequences * (_machine_ms(work, busy + 1, sequences, cores) - _MIN_GAIN * before)


def idle_engine_cost_ms(work: TypicalRequestCost, busy: int, sequences: int, cores: int) -> float:
    """Return the milliseconds that all sequences together lose with `busy` engines instead of one
    fewer; 0 if the gain is too small for a change."""
    before = _machine_ms(work, busy, sequences, cores)
    return max(
        0.0, sequences * (_MIN_GAIN * before - _machine_ms(work, busy - 1, sequences, cores))
    )


def _machine_ms(work: TypicalRequestCost, engines: int, sequences: int, cores: int) -> float:
    """Return the machine's time that each sequence takes, if they are spread over engines that
    share its cores."""
    threads = max(1.0, cores / engines)
    prefill = work.prompt_ms * _share(_SERIAL_PREFILL, threads) / engines
    step = work.step_ms * _share(_SERIAL_STEP, threads) + work.row_ms * sequences / engines
    return prefill + work.answer_tokens * step / sequences


def _share(serial: float, threads: float) -> float:
    """Return the duration with this many threads, as a share of that with one (Amdahl's law)."""
    return serial + (1 - serial) / threads
