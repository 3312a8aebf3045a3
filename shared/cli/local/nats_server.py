"""The NATS server of `cluster up`: its configuration, process and port."""

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from shared.access.server_config import sizes
from shared.cli.local.addresses import local_address
from shared.cli.local.child import Child
from shared.cli.local.programs import nats_server_path
from shared.errors import ClusterError, SettingsError
from shared.python_module import python_module

_START_LIMIT_S = 15.0
_POLL_S = 0.02
_NO_STORE = re.compile(r"Can't start JetStream: (.*)")


class NatsServer:
    """A nats-server with JetStream that stores its data in `folder`.

    Args:
        access: server settings that control access.

    Attributes:
        port: the port on which the server listens; 0 before `start` if any free port was asked for.
    """

    def __init__(self, folder: Path, host: str, port: int, access: Mapping[str, Any]) -> None:
        self.port = port
        self._folder = folder
        self._host = host
        self._access = access
        self._config = folder / "nats-server.json"
        self._ports = folder / "ports"
        wrapper = python_module("shared.cli.local.lifeline")
        self.child = Child(
            "nats",
            [*wrapper, nats_server_path(), "--config", str(self._config)],
            folder / "logs" / "nats.log",
            {},
        )

    @property
    def url(self) -> str:
        """URL for processes on this machine."""
        return f"nats://{local_address(self._host, self.port)}"

    async def start(self) -> None:
        """Start the server, and return when it listens.

        Raises:
            ClusterError: the server ended, for example because the port is in use.
        """
        self._kill_orphan()
        shutil.rmtree(self._ports, ignore_errors=True)
        self._ports.mkdir(parents=True)
        self._write_config()
        await self.child.start()
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while (listening := self._listening_port()) is None:
                    if not self.child.running:
                        raise self._failure()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(f"the NATS server did not start:\n{self._tail()}") from None
        self.port = listening  # used again after a restart

    def _kill_orphan(self) -> None:
        """Kill an earlier server whose wrapper was killed, because it still holds the port."""
        for file in self._ports.glob("nats-server_*.ports"):
            with contextlib.suppress(ValueError, psutil.Error):
                process = psutil.Process(int(file.stem.removeprefix("nats-server_")))
                if str(self._config) in process.cmdline():
                    process.kill()
                    process.wait(_START_LIMIT_S)

    def _write_config(self) -> None:
        config: dict[str, Any] = {
            "host": self._host,
            "port": self.port or -1,
            "server_name": f"mlx-{self._folder.name}",
            "ports_file_dir": str(self._ports),
            **sizes(self._folder / "jetstream"),
            **self._access,
        }
        self._config.touch(mode=0o600)
        # The server reads UTF-8, but not the \\u escapes of JSON.
        text = json.dumps(config, indent=2, ensure_ascii=False)
        self._config.write_bytes(os.fsencode(text))

    def _listening_port(self) -> int | None:
        for file in self._ports.glob("*.ports"):
            text = file.read_text()
            if text.strip():
                return int(json.loads(text)["nats"][0].rsplit(":", 1)[1])
        return None

    def _failure(self) -> ClusterError:
        tail = self._tail()
        if "address already in use" in tail:
            return SettingsError(
                f"port {self.port} is in use. Does a cluster already run (see `cluster status`)? "
                "Choose another port with --nats-port, 0 for any free one"
            )
        if "cannot assign requested address" in tail or "can't assign requested address" in tail:
            return SettingsError(f"--listen {self._host}: this machine has no such address")
        if "no such host" in tail:
            return SettingsError(f"--listen {self._host}: no such host")
        if (found := _NO_STORE.search(tail)) is not None:
            return SettingsError(
                f"the NATS server cannot store data in {self._folder / 'jetstream'}: {found[1]}"
            )
        return ClusterError(f"the NATS server ended:\n{tail}")

    def _tail(self) -> str:
        return self.child.last_lines()
