"""Whether rows of a model may be batched, as far as that is known before it is tried.

`make architectures` judges a small model of each module of mlx-lm, and what it found comes with the
project. It holds for a module, the kinds of caches that its layers have, and a release of mlx-lm;
what is unknown is probed when it is loaded (`probe.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from shared.messages.model_status import Batching
from worker.engine.caches import leaves

DATA = Path(__file__).with_name("verdicts.json")
_MODULES = "mlx_lm.models."
_OURS = f"{__package__}."


@dataclass(frozen=True, slots=True)
class BatchingVerdict:
    """Whether rows decode `together`, or each `alone`.

    Attributes:
        reason: why alone.
        probe_s: what finding out took, where it was probed.
    """

    batching: Batching
    reason: str | None = None
    probe_s: float | None = None


TOGETHER = BatchingVerdict("together")


def known_verdict(network: Any) -> BatchingVerdict | None:
    """What comes with the project for a network like this; None where nothing does."""
    module = _module_of(network)
    if module is None:
        return None
    return _verdicts().get(key(module, cache_kinds(network), version("mlx-lm")))


def key(module: str, caches: Sequence[str], release: str) -> str:
    """Of a verdict in the data."""
    return f"{module}, {' and '.join(caches)}, mlx-lm {release}"


def cache_kinds(network: Any) -> list[str]:
    """The kinds of caches of its layers, as mlx-lm names them."""
    return sorted({type(leaf).__name__ for leaf in leaves(make_prompt_cache(network))})


def _module_of(network: Any) -> str | None:
    """The module of `mlx_lm.models` that defines a network, whatever this engine put before its
    class; None where the definition came with the model's files."""
    names = (kind.__module__ for kind in type(network).__mro__)
    name = next(name for name in names if not name.startswith(_OURS))
    return name.removeprefix(_MODULES) if name.startswith(_MODULES) else None


def _verdicts() -> dict[str, BatchingVerdict]:
    if not DATA.exists():
        return {}
    found = json.loads(DATA.read_text())
    return {
        name: BatchingVerdict(each["batching"], each.get("reason")) for name, each in found.items()
    }
