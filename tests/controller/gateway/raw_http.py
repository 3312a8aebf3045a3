"""HTTP written and read by hand: what no client library would send, and all that comes back."""

import json
import socket
from dataclasses import dataclass
from typing import Any

import h11

from tests.controller.gateway.gateway_process import GatewayProcess


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


def connected(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=30)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def answers(gateway: GatewayProcess, *requests: bytes, method: str = "GET") -> list[Answer]:
    """Those to some bytes, until the gateway closes; only those that look whole."""
    with connected(gateway) as connection:
        for request in requests:
            connection.sendall(request)
        return parsed(received(connection), method)


def parsed(data: bytes, method: str = "GET") -> list[Answer]:
    """The whole responses in some bytes, by a strict parser."""
    found: list[Answer] = []
    while data:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        body, head = b"", None
        while (event := client.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        else:
            return found
        assert head is not None
        headers = {name.decode(): value.decode() for name, value in head.headers}
        found.append(Answer(head.status_code, headers, body))
        data = client.trailing_data[0]
    return found
