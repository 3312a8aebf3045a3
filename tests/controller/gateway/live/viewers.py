"""Viewers of `/cluster/events` over real HTTP, and orders."""

import contextlib
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.controller.gateway.gateway_process import GatewayProcess, make_key
from tests.controller.gateway.live.event_text import Event, TableCopy, parsed

EVENTS, ORDERS = "/cluster/events", "/cluster/orders"
LIMIT_S = 60
ADMIN, ADA, BOB = "admin", "ada", "bob"
CLIENTS = {ADMIN: ["--admin"], ADA: [], BOB: []}
"""Of a keys file in these tests, with the arguments of `gateway keys add`."""


class Viewer:
    """One stream of events.

    Attributes:
        tables: the rows that it has, by view.
        first: the first value of each view.
        values: the last value of each view.
        records: of the log.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.tables: defaultdict[str, TableCopy] = defaultdict(TableCopy)
        self.first: dict[str, dict[str, Any]] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.records: list[dict[str, Any]] = []
        self._chunks = response.iter_raw()
        self._text = b""
        self._events: list[Event] = []

    def next(self) -> Event:
        """The next event. Raises StopIteration when the stream has ended."""
        while not self._events:
            self._text += next(self._chunks)
            whole, separator, self._text = self._text.rpartition(b"\n\n")
            self._events = parsed(whole + separator)
        view, value = self._events.pop(0)
        self.values[view] = value
        self.first.setdefault(view, value)
        if view == "log":
            self.records += value["records"]
        if "whole" in value:
            self.tables[view].apply(value)
        return view, value

    def until(self, condition: Callable[["Viewer"], Any], what: str) -> Any:
        """Read on until a condition holds, and return its value."""
        deadline = time.monotonic() + LIMIT_S
        while not (value := condition(self)):
            assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}; {self.values}"
            self.next()
        return value

    def during(self, seconds: float) -> list[tuple[float, str]]:
        """When which views came meanwhile."""
        begun, came = time.monotonic(), []
        while (now := time.monotonic()) - begun < seconds:
            view, _ = self.next()
            came.append((time.monotonic() - begun, view))
        assert now > begun
        return came

    def rows(self, view: str) -> list[dict[str, Any]]:
        return list(self.tables[view].rows.values())


@contextlib.contextmanager
def viewing(
    gateway: GatewayProcess, views: str | None = None, *, headers: dict[str, str] | None = None
) -> Iterator[Viewer]:
    """Look until the block is left.

    Args:
        views: with commas; by default all.
    """
    params = {"views": views} if views is not None else {}
    with httpx.stream(
        "GET", gateway.url + EVENTS, params=params, headers=headers, timeout=LIMIT_S
    ) as response:
        assert response.status_code == 200, response.read()
        yield Viewer(response)


@contextlib.contextmanager
def reading_nothing(gateway: GatewayProcess, views: str) -> Iterator[socket.socket]:
    """A viewer that has stopped to read, with little room in its socket."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", gateway.port))
        request = f"GET {EVENTS}?views={views} HTTP/1.1\r\nhost: 127.0.0.1:{gateway.port}\r\n\r\n"
        connection.sendall(request.encode())
        yield connection


def order(gateway: GatewayProcess, key: str | None = None, /, **fields: Any) -> httpx.Response:
    return httpx.post(gateway.url + ORDERS, json=fields, headers=bearer(key), timeout=LIMIT_S)


def bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key is not None else {}


def refusal(response: httpx.Response) -> tuple[int, str]:
    """The status and code of an error, which must have a sentence in OpenAI's form."""
    error = response.json()["error"]
    assert response.headers["content-type"] == "application/json"
    assert isinstance(error["message"], str) and len(error["message"]) > 5
    return response.status_code, error["code"]


def make_keys(file: Path) -> dict[str, str]:
    """A key for each of `CLIENTS`."""
    return {client: make_key(file, client, *given) for client, given in CLIENTS.items()}
