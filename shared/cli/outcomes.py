"""What became of an order to several workers."""

from collections.abc import Sequence
from dataclasses import dataclass

import click
import orjson

from shared.cli.views.figures import printable
from shared.errors import RequestError
from shared.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order to one worker.

    Attributes:
        done: what the worker did, or does; None where it did not.
        code, reason: why not.
    """

    worker: WorkerId
    done: str | None = None
    code: str | None = None
    reason: str | None = None


def tell(
    outcomes: Sequence[Outcome], failure: str, *, model: str | None = None, as_json: bool
) -> None:
    """Print what became of an order.

    Args:
        failure: what is to be said where some worker did not do it.
        model: the one that it was about, if it was.

    Raises:
        RequestError: some worker did not do it; with each worker's reason.
    """
    if as_json:
        workers = [
            {"worker": o.worker, "ok": o.done is not None, "code": o.code, "message": o.reason}
            for o in outcomes
        ]
        about = {} if model is None else {"model": model}
        click.echo(orjson.dumps({**about, "workers": workers}).decode())
    else:
        for outcome in outcomes:
            if outcome.done is not None:
                who = outcome.worker if model is None else f"{outcome.worker}: {model}"
                click.echo(printable(f"{who} {outcome.done}"))
    failed = [outcome for outcome in outcomes if outcome.done is None]
    if failed:
        reasons = "; ".join(f"{one.worker}: {one.reason}" for one in failed)
        raise RequestError(printable(f"{failure}: {reasons}"), code=failed[0].code)
