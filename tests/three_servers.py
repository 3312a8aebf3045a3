"""Three real NATS servers that are one, as `cluster auth init --clustered` sets them up."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

from shared.access.folder import AccessFolder, ServerAddresses
from shared.access.server_folder import CONFIG_NAME
from tests.processes import SCRIPTS, free_port

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""Each stands for a machine: ports are the same on all."""


class ThreeServers:
    """The folder of their secrets, and the processes, each started in a copy of its own folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        listening = ServerAddresses(
            names=list(ADDRESSES), port=int(free_port()), route_port=int(free_port())
        )
        self.access = AccessFolder.create(folder / "access", listening)
        self._folder = folder
        self._stack = stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *addresses: str) -> None:
        """Start some, with the users that are known now."""
        for server in self.access.servers:
            (name,) = server.names
            if name not in addresses:
                continue
            machine = self._folder / name
            machine.mkdir(exist_ok=True)
            for file in server.path.iterdir():
                (machine / file.name).write_bytes(file.read_bytes())
            config = json.loads((machine / CONFIG_NAME).read_text())
            config["host"] = config["cluster"]["host"] = name  # all are this machine
            (machine / CONFIG_NAME).write_text(json.dumps(config))
            log = self._stack.enter_context((machine / "log").open("ab"))
            process = subprocess.Popen(
                [SCRIPTS / "nats-server", "--config", CONFIG_NAME], cwd=machine, stderr=log
            )
            self._stack.callback(_end, process)
            self._processes[name] = process

    def kill(self, address: str) -> None:
        _end(self._processes[address])


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
