"""Maps the reasoning effort of a request to variables of the model's chat template."""

from collections.abc import Collection
from typing import Any

from worker.link.orders import SubmitSequence

_SWITCHES = ("enable_thinking", "thinking")
"""Boolean template variables that turn reasoning on and off."""
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high", "none": "low"}
"""Efforts that templates with a `reasoning_effort` do not know, and the nearest known one."""


def template_values(
    order: SubmitSequence, variables: Collection[str], *, reasons: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the template variables of a request, and warnings about values that have no effect.

    Args:
        variables: the variables that the template reads.
        reasons: whether the model is known to reason.
    """
    values = {key: value for key, value in order.template_values.items() if key in variables}
    warnings = [
        f"chat_template_kwargs.{name}: the model's chat template does not read it"
        for name in sorted(order.template_values.keys() - values.keys())
    ]
    effort = order.reasoning_effort
    if effort is None:
        return values, warnings
    switches = [name for name in _SWITCHES if name in variables]
    for name in switches:
        values.setdefault(name, effort != "none")
    if "reasoning_effort" in variables and not (effort == "none" and switches):
        known = _EFFORTS.get(effort, effort)
        values.setdefault("reasoning_effort", known)
        if known != effort:
            warnings.append(
                f"reasoning_effort: the model does not know `{effort}`: it gets `{known}`"
            )
    elif effort == "none" and reasons and not switches:
        warnings.append("reasoning_effort: thinking cannot be turned off for this model")
    return values, warnings
