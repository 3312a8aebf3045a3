"""The results of a control order to several workers."""

from collections.abc import Sequence
from dataclasses import dataclass

import click
import orjson

from shared.errors import RequestError
from shared.ids import WorkerId
from shared.terminal_text import printable


@dataclass(frozen=True, slots=True)
class WorkerOrderResult:
    """The result of a control order to one worker.

    Attributes:
        done: what the worker did or is doing, as a phrase; None if the order failed.
        code, reason: why the order failed.
    """

    worker: WorkerId
    done: str | None = None
    code: str | None = None
    reason: str | None = None


def print_outcomes(
    outcomes: Sequence[WorkerOrderResult], failure: str, *, model: str | None = None, as_json: bool
) -> None:
    """Print the outcome of each worker.

    Args:
        failure: start of the error message if the order failed on a worker.
        model: the model that the order was about, if any.

    Raises:
        RequestError: the order failed on a worker; the message has the reason of each.
    """
    if as_json:
        workers = [
            {"worker": o.worker, "ok": o.done is not None, "code": o.code, "message": o.reason}
            for o in outcomes
        ]
        header = {} if model is None else {"model": model}
        click.echo(orjson.dumps({**header, "workers": workers}).decode())
    else:
        for outcome in outcomes:
            if outcome.done is not None:
                subject = outcome.worker if model is None else f"{outcome.worker}: {model}"
                click.echo(printable(f"{subject} {outcome.done}"))
    failed = [outcome for outcome in outcomes if outcome.done is None]
    if failed:
        reasons = "; ".join(f"{outcome.worker}: {outcome.reason}" for outcome in failed)
        raise RequestError(printable(f"{failure}: {reasons}"), code=failed[0].code)
