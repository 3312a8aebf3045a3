"""Whether one engine more at work pays, where engines share the cores of a machine.

Without a GPU a part of each pass keeps one core busy only (MLX), so that two engines prefill more
than one with all cores. But each of them reads the weights for every step, and waits longer for
them with fewer threads: so few rows belong together in one engine. Amdahl's law, with serial parts
measured with MLX 0.32.4 and OpenBLAS on two x86-64 cores (docs/decisions.md, 2026-11-26).
"""

from dataclasses import dataclass

_SERIAL_PREFILL = 0.5
_SERIAL_STEP = 0.25
"""Of what one thread needs for a prompt, and for the fixed part of a step."""
_GAIN = 0.9
"""Another engine is put to work, or left to run dry, for a tenth of the machine's time."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What requests are like, in milliseconds with one thread.

    Attributes:
        prompt_ms: the part of its prompt that is to be computed.
        step_ms, row_ms: a step takes the one, and the other for each row.
    """

    prompt_ms: float
    answer_tokens: float
    step_ms: float
    row_ms: float

    @classmethod
    def measured(
        cls, prompt_ms: float, answer_tokens: float, step_ms: float, row_ms: float, threads: float
    ) -> "RequestCost":
        """Of what took so long with so many threads."""
        return cls(
            prompt_ms / _share(_SERIAL_PREFILL, threads),
            answer_tokens,
            step_ms / _share(_SERIAL_STEP, threads),
            row_ms,
        )


def scale_up_cost_ms(work: RequestCost, busy: int, sequences: int, cores: int) -> float:
    """What all of so many sequences lose by one more engine at work than `busy`, beyond what is
    worth it; below 0 where they gain."""
    before = _machine_ms(work, busy, sequences, cores)
    return sequences * (_machine_ms(work, busy + 1, sequences, cores) - _GAIN * before)


def idle_engine_cost_ms(work: RequestCost, busy: int, sequences: int, cores: int) -> float:
    """What all lose by as many engines at work as there are, beyond one fewer; 0 where that is not
    worth a change."""
    before = _machine_ms(work, busy, sequences, cores)
    return max(0.0, sequences * (_GAIN * before - _machine_ms(work, busy - 1, sequences, cores)))


def _machine_ms(work: RequestCost, engines: int, sequences: int, cores: int) -> float:
    """What each of so many sequences takes of the machine's time, spread over engines that share
    its cores."""
    threads = max(1.0, cores / engines)
    prefill = work.prompt_ms * _share(_SERIAL_PREFILL, threads) / engines
    step = work.step_ms * _share(_SERIAL_STEP, threads) + work.row_ms * sequences / engines
    return prefill + work.answer_tokens * step / sequences


def _share(serial: float, threads: float) -> float:
    """Of the time that one thread needs."""
    return serial + (1 - serial) / threads
