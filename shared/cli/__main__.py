"""`python -m shared.cli` is `cluster`."""

from shared.cli.main import main

main(prog_name="cluster")
