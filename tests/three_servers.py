"""Three real NATS servers that are one, as `cluster auth init --clustered` sets them up."""

import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from shared.access.folder import AccessFolder, ServerAddresses
from shared.access.server_folder import CONFIG_NAME
from tests.processes import RELOADED, SCRIPTS, free_port, wait_for

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
        for name in addresses:
            machine = self._copy(name)
            log = self._stack.enter_context((machine / "log").open("ab"))
            process = subprocess.Popen(
                [SCRIPTS / "nats-server", "--config", CONFIG_NAME], cwd=machine, stderr=log
            )
            self._stack.callback(_end, process)
            self._processes[name] = process

    def reload(self, *addresses: str) -> None:
        """Let some take the users that are known now, and return once they have."""
        for name in addresses:
            log = self._copy(name) / "log"
            before = log.read_text().count(RELOADED)
            self._processes[name].send_signal(signal.SIGHUP)
            wait_for(lambda: log.read_text().count(RELOADED) > before, "it has reloaded")  # noqa: B023

    def _copy(self, name: str) -> Path:
        """Copy the folder of a server to its machine."""
        (server,) = (each for each in self.access.servers if each.names == [name])
        machine = self._folder / name
        machine.mkdir(exist_ok=True)
        for file in server.path.iterdir():
            (machine / file.name).write_bytes(file.read_bytes())
        config = json.loads((machine / CONFIG_NAME).read_text())
        config["host"] = config["cluster"]["host"] = name  # all are this machine
        (machine / CONFIG_NAME).write_text(json.dumps(config))
        return machine

    def kill(self, address: str) -> None:
        _end(self._processes[address])


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
