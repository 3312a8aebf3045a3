"""From judgements to the verdicts that come with the project."""

import json
from collections.abc import Iterable
from importlib.metadata import version

from shared.messages.model_status import Batching
from tests.architectures.judgement import Judgement
from worker.engine.batching_verdicts import DATA, BatchingVerdict, key


def keep(judgements: Iterable[Judgement]) -> None:
    """Add them to the data, in place of those of the same release of mlx-lm."""
    verdicts = json.loads(DATA.read_text()) if DATA.exists() else {}
    verdicts |= {
        name: {"batching": verdict.batching, "reason": verdict.reason}
        for name, verdict in verdicts_of(judgements, version("mlx-lm")).items()
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(verdicts[name])}" for name in sorted(verdicts)]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def verdicts_of(judgements: Iterable[Judgement], release: str) -> dict[str, BatchingVerdict]:
    """By key. Where several models have one key, rows of none go together if those of one may not.
    Of what was wrong or refused there is none: that depends on more than the key, so it is probed.
    """
    verdicts: dict[str, BatchingVerdict] = {}
    judgements = list(judgements)
    wrong = {
        key(each.module, each.caches, release) for each in judgements if each.outcome == "wrong"
    }
    for each in judgements:
        if each.outcome not in ("batched", "alone"):
            continue
        name = key(each.module, each.caches, release)
        if name not in wrong and (name not in verdicts or each.outcome == "alone"):
            batching: Batching = "together" if each.outcome == "batched" else "alone"
            verdicts[name] = BatchingVerdict(batching, each.reason if batching == "alone" else None)
    return verdicts
