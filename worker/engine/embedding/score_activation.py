"""How the logit of a classifier with one label becomes a score, as sentence-transformers'
`CrossEncoder` finds it."""

from collections.abc import Mapping
from typing import Any, Literal

from shared.errors import ModelError

ScoreActivation = Literal["sigmoid", "identity"]

_SETTING = "activation_fn"
_OLD_SETTING = "sbert_ce_default_activation_function"
_KNOWN: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity"}


def score_activation(config: Mapping[str, Any]) -> ScoreActivation:
    """Return what is applied to the logit: the sigmoid, unless config.json names another one.

    Raises:
        ModelError: it names one that is not supported.
    """
    own = config.get("sentence_transformers")
    named = own.get(_SETTING) if isinstance(own, dict) else None
    named = named if named is not None else config.get(_OLD_SETTING)
    if named is None:
        return "sigmoid"
    known = _KNOWN.get(str(named).rpartition(".")[2])
    if known is None:
        raise ModelError(f"the activation {str(named)[:80]!r} of its scores is not supported")
    return known
