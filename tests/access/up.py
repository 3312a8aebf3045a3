"""`cluster up` where each process proves who it is, over TLS, to a server that knows its users:

python -m tests.access.up --members FOLDER --folder FOLDER [--workers N] [--model M]
"""

import sys
from pathlib import Path

import click

from shared.cli.local.cluster import LocalPlan
from shared.cli.local.model import fetch_demo_model
from shared.cli.options import prints_errors, read_settings
from shared.cli.up import UpRun, settings_of_flags
from shared.service import run_service
from tests.access.members import Members

_STRICT = {"CLUSTER__SECURITY__STRICT_INBOX": "true"}


@click.command()
@click.option("--members", type=click.Path(path_type=Path), required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="For what it keeps.")
@click.option("--workers", type=int, default=1)
@click.option("--model")
@click.option("--http-port", type=int)
@prints_errors
def main(
    members: Path, folder: Path, workers: int, model: str | None, http_port: int | None
) -> None:
    settings = read_settings(None, None, None, settings_of_flags(model, http_port))
    plan = LocalPlan(
        workers=workers,
        host="127.0.0.1",
        port=0,
        access=Members(members),
        config=None,
        model=model,
        folder=folder,
        environment=_STRICT,
    )
    fetch_demo_model(settings)
    up = UpRun(plan, settings, [], token=None, as_json=True)
    sys.exit(run_service(up.run))


if __name__ == "__main__":
    main()
