"""Connecting: servers that are not there, refuse us, or come later."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.bus import Bus
from shared.bus.options import client_options
from shared.cli.local.access import SharedToken
from shared.cli.local.nats_server import NatsServer
from shared.errors import BusUnreachable, SettingsError
from shared.settings.nats import NatsSettings, TlsSettings
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

TOKEN = "s3cr3t-t0ken"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A server that asks for a token."""
    (tmp_path / "logs").mkdir()
    server = NatsServer(tmp_path, "127.0.0.1", 0, SharedToken(TOKEN).server_settings)
    await server.start()
    yield server
    await server.child.stop(5)


async def refusal(settings: NatsSettings) -> str:
    with pytest.raises(BusUnreachable) as caught:
        await Bus.connect(settings, name="t", wait_s=0)
    assert (caught.value.code, caught.value.retryable) == ("bus", True)
    return caught.value.message


@pytest.mark.parametrize("token", [None, "wr0ng-t0ken"])
async def test_a_wrong_or_missing_token_is_said_without_showing_it(
    guarded: NatsServer, token: str | None
) -> None:
    secret = None if token is None else SecretStr(token)
    settings = NatsSettings(servers=[guarded.url], token=secret)
    messages = [await refusal(settings) for _ in range(5)]
    for message in messages:
        assert message.startswith(f"cannot reach NATS at {guarded.url}: ")
        assert "t0ken" not in message
    # Not all of them: see the next test.
    assert any("Authorization Violation" in message for message in messages)


async def test_a_refused_token_is_said_even_when_a_reset_follows() -> None:
    refusals = 0

    async def refuse_then_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A simulated server: says why the first time, then resets every connection."""
        nonlocal refusals
        writer.write(b'INFO {"server_id":"x","max_payload":1024,"auth_required":true}\r\n')
        await reader.readline()
        if refusals == 0:
            writer.write(b"-ERR 'Authorization Violation'\r\n")
        else:
            linger = struct.pack("ii", 1, 0)  # closing sends a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        refusals += 1
        writer.close()

    server = await asyncio.start_server(refuse_then_reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(BusUnreachable) as caught:
            await Bus.connect(
                NatsSettings(servers=[f"nats://127.0.0.1:{port}"]), name="t", wait_s=1
            )
    finally:
        server.close()
        await server.wait_closed()
    assert refusals > 1
    assert "Authorization Violation" in caught.value.message


async def test_a_password_in_the_url_is_not_shown(guarded: NatsServer) -> None:
    url = guarded.url.replace("://", "://ada:pa55word@")
    message = await refusal(NatsSettings(servers=[url]))
    assert message.startswith(f"cannot reach NATS at {guarded.url}: ")
    assert "pa55word" not in message and "ada" not in message


async def test_the_url_in_use_is_told_without_its_password(guarded: NatsServer) -> None:
    url = guarded.url.replace("://", f"://{TOKEN}@")
    bus = await Bus.connect(NatsSettings(servers=[url]), name="t", wait_s=30)
    assert bus.server_url == guarded.url
    await bus.close()


async def test_where_no_server_is_the_address_and_the_reason_are_named(tmp_path: Path) -> None:
    with NatsProcess(tmp_path, secured=False) as gone:
        port = gone.url.rsplit(":", 1)[1]
    message = await refusal(NatsSettings(servers=[f"nats://ada:pa55word@127.0.0.1:{port}"]))
    assert message.startswith("cannot reach NATS at nats://127.0.0.1:")
    assert "Connection refused" in message or "Connect call failed" in message
    assert "pa55word" not in message


async def test_all_servers_are_named_and_one_that_is_there_is_enough(
    guarded: NatsServer, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with NatsProcess(folder, secured=False) as gone:
        pass
    servers = [gone.url, guarded.url]
    assert f"{gone.url}, {guarded.url}: " in await refusal(NatsSettings(servers=servers))
    bus = await Bus.connect(
        NatsSettings(servers=servers, token=SecretStr(TOKEN)), name="t", wait_s=30
    )
    assert bus.server_url == guarded.url
    await bus.close()


async def test_connecting_goes_on_until_the_server_is_there(tmp_path: Path) -> None:
    with NatsProcess(tmp_path, secured=False) as server:
        server.kill()
        connecting = asyncio.create_task(
            Bus.connect(NatsSettings(servers=[server.url]), name="t", wait_s=30)
        )
        await asyncio.to_thread(server.start)
        bus = await asyncio.wait_for(connecting, 30)
        assert bus.connected
        await bus.close()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (NatsSettings(user_credentials="/gone/ada.creds"), "nats.user_credentials"),
        (NatsSettings(nkey_seed_file="/gone/ada.nk"), "nats.nkey_seed_file"),
        (NatsSettings(tls=TlsSettings(ca_file="/gone/ca.pem")), "nats.tls"),
        (NatsSettings(tls=TlsSettings(cert_file="/gone/cert.pem")), "nats.tls"),
    ],
)
async def test_a_missing_credentials_or_tls_file_is_a_settings_error(
    settings: NatsSettings, key: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        await Bus.connect(settings, name="t")
    assert caught.value.param == key
    assert caught.value.message.startswith(f"{key}: ")


async def test_a_bad_ca_file_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(SettingsError, match=r"nats\.tls"):
        client_options(
            NatsSettings(tls=TlsSettings(ca_file=str(tmp_path / "ca.pem"))),
            name="t",
            inbox_prefix="_INBOX",
        )
