"""The second site of deploy/README.md: its two files, on two real servers with keys and TLS."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.access.folder import AccessFolder, new_listening
from shared.access.member_credentials import MemberCredentials
from shared.access.roles import Role
from shared.bus import Bus, IncomingMessage
from shared.errors import BusPermissionDenied, NoResponders
from shared.settings.nats import NatsSettings, TlsSettings
from shared.subjects import inbox_prefix
from tests.deploy.guide import PAGE
from tests.processes import SCRIPTS, free_port, wait_for

pytestmark = pytest.mark.anyio

NOW = "2026-11-24T12:00:00Z"
_NEEDED = ("server.crt", "server.key", "authority.crt")


class Sites:
    """
    Attributes:
        first, second: ports of the servers.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.first, self.second = free_port(), free_port()
        self._folder = folder
        listening = new_listening(names=["127.0.0.1"], port=int(self.first))
        self.access = AccessFolder.create(folder / "first", listening)
        self.members: dict[tuple[Role, str], MemberCredentials] = {}
        users: list[tuple[Role, str]] = [
            ("controller", "c-1"), ("worker", "far"), ("client", "ada")
        ]  # fmt: skip
        with self.access.changing():
            for role, name in users:
                self.members[role, name] = self.access.add(role, name, now=NOW)
        first, second = re.findall(r"```\n   (include .*?)```", PAGE.read_text(), re.DOTALL)
        line = free_port()
        self._serve(folder / "first", first.replace("7422", line), stack)
        config = json.loads((folder / "first" / "nats-server.json").read_text())
        del config["jetstream"]
        elsewhere = json.dumps(config | {"port": int(self.second)})
        elsewhere = elsewhere.replace(str(folder / "first"), str(folder / "second"))
        (folder / "second").mkdir()
        (folder / "second" / "nats-server.json").write_text(elsewhere)
        for name in _NEEDED:
            (folder / "second" / name).write_bytes((folder / "first" / name).read_bytes())
        there = second.replace("mac-1.local:7422", f"127.0.0.1:{line}")
        self._serve(folder / "second", there, stack)

    def _serve(self, folder: Path, text: str, stack: ExitStack) -> None:
        (folder / "site.conf").write_text(text)
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen(
            [SCRIPTS / "nats-server", "--config", "site.conf"], cwd=folder, stderr=log
        )
        stack.callback(_end, process)
        wait_for(lambda: "Server is ready" in (folder / "log").read_text(), "it listens")

    async def connect(self, role: Role, name: str, port: str) -> Bus:
        seed = self._folder / f"{name}.nk"
        seed.write_text(self.members[role, name].seed)
        nats = NatsSettings(
            servers=[f"tls://127.0.0.1:{port}"],
            nkey_seed_file=str(seed),
            tls=TlsSettings(ca_file=str(self._folder / "first" / "authority.crt")),
        )
        return await Bus.connect(nats, name=name, inbox_prefix=inbox_prefix(role, name), wait_s=10)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(tmp_path, stack)


async def _answer(bus: Bus, subject: str) -> bytes:
    """An answer from the other site, once this one has heard who subscribes there."""
    async with asyncio.timeout(20):
        while True:
            try:
                return (await bus.request(subject, b"", timeout_s=30)).payload
            except NoResponders:
                await asyncio.sleep(0.05)


async def test_a_worker_of_the_second_site_serves_the_first(sites: Sites) -> None:
    worker = await sites.connect("worker", "far", sites.second)
    controller = await sites.connect("controller", "c-1", sites.first)

    async def answer(message: IncomingMessage) -> None:
        await worker.publish(message.reply, b"from far")

    await worker.subscribe("mlx.worker.far.infer", answer)
    await worker.flush()
    assert await _answer(controller, "mlx.worker.far.infer") == b"from far"
    ada = await sites.connect("client", "ada", sites.second)
    with pytest.raises(BusPermissionDenied):
        await ada.request("mlx.worker.far.infer", b"", timeout_s=30)

    async def reply(message: IncomingMessage) -> None:
        await controller.publish(message.reply, b"to ada")

    await controller.subscribe("mlx.infer.*.*", reply)
    await controller.flush()
    assert await _answer(ada, "mlx.infer.ada.chat") == b"to ada"
    for bus in (ada, controller, worker):
        await bus.close()
