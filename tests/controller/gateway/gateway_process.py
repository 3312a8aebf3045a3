"""A real gateway process in front of a cluster of tests."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
from click.testing import CliRunner

from controller.gateway.main import main
from tests.access.roles import environment
from tests.processes import SCRIPTS


@dataclass
class GatewayProcess:
    """A running `gateway`."""

    process: "subprocess.Popen[str]"
    url: str
    log: IO[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def logged(self, message: str) -> bool:
        """Whether it has logged something so far."""
        descriptor = self.log.fileno()  # not read with `log`, which would move where it writes
        return message.encode() in os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def open_requests(self) -> int:
        """Those that it is answering; where it asks for keys this is not told."""
        lines = httpx.get(f"{self.url}/metrics", timeout=20).text.splitlines()
        (line,) = [line for line in lines if line.startswith("mlx_gateway_open_requests ")]
        return int(float(line.split()[1]))


@contextlib.contextmanager
def gateway_process(
    nats_url: str, *arguments: str, settings: Mapping[str, str] | None = None
) -> Iterator[GatewayProcess]:
    """Start it on a free port, and end it.

    Args:
        settings: as environment variables, `CLUSTER__SECTION__KEY`.
    """
    command = [str(SCRIPTS / "gateway"), "--id", "gateway"]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would stop it
        process = subprocess.Popen(
            [*command, "--json", "--nats", nats_url, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment("gateway", "gateway", nats_url), **(settings or {})},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            raise AssertionError(f"the gateway did not start: {log.read()}")
        try:
            yield GatewayProcess(process, json.loads(line)["http_url"], log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def make_key(keys_file: Path, client: str, *arguments: str) -> str:
    """A new key, made with the command."""
    made = CliRunner().invoke(
        main, ["--keys-file", str(keys_file), "keys", "add", client, *arguments]
    )
    assert made.exit_code == 0, made.output
    return made.stdout.strip()
