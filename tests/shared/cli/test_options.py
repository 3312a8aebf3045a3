"""Errors as commands print them."""

import errno
import json
import os

import click
import pytest
from click.testing import CliRunner, Result

from shared.cli.options import json_option, prints_errors


def failing(number: int, *flags: str) -> Result:
    @click.command()
    @json_option
    @prints_errors
    def command(as_json: bool) -> None:
        raise OSError(number, os.strerror(number), "/data/nats-server.json")

    return CliRunner().invoke(command, flags)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_disk_is_one_line(number: int) -> None:
    done = failing(number)
    assert done.exit_code == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"cannot write to /data/nats-server.json: {os.strerror(number)}; " in line
    body = json.loads(failing(number, "--json").stderr)
    assert "/data/nats-server.json" in body["error"]["message"]


def test_other_errors_are_not_hidden() -> None:
    assert isinstance(failing(errno.EBADF).exception, OSError)
