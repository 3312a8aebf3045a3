"""The receiving half of NATS's protocol: what the server sends, parsed so that no client's bytes
can change what a process reads.

nats-py 2.16 splits a line at any white space, while the server splits only at blanks and tabs and
forwards every other byte of a subject: with `\\x0b` in a subject, its publisher chose the
subscription that received the message. This parser splits as the server does. A message is skipped
with its payload if its subject is no printable text, or its reply subject no visible ASCII.
"""

import json
import re
from typing import Any, Protocol

from nats.errors import ProtocolError
from nats.protocol.parser import (
    AWAITING_CONTROL_LINE,
    AWAITING_MSG_PAYLOAD,
    Parser,
)

_MSG = re.compile(rb"MSG ([!-~]+) (\d+) (?:([!-~]+) )?(\d+)\r\n")
_HMSG = re.compile(rb"HMSG ([!-~]+) (\d+) (?:([!-~]+) )?(\d+) (\d+)\r\n")
_ANY_MSG = re.compile(rb"MSG ([^ \t\n]+) (\d+) (?:([^ \t\n]+) )?(\d+)\r?\n")
_ANY_HMSG = re.compile(rb"HMSG ([^ \t\n]+) (\d+) (?:([^ \t\n]+) )?(\d+) (\d+)\r?\n")
"""The same with whatever bytes a publisher may use in a subject or reply subject."""
_OPERATION = re.compile(rb"(PING|PONG|\+OK|-ERR|INFO)[ \t]*([^\n]*?)[ \t\r]*\n")
_END_BYTES = len(b"\r\n")


class ReceivingClient(Protocol):
    """What the parser calls: the NATS client's own methods, `take` and `drop`."""

    def take(self, sid: int, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """Take a message without headers; returns False if it is for `_process_msg`."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None: ...

    async def _process_err(self, err_msg: str) -> None: ...

    async def _process_ping(self) -> None: ...

    async def _process_pong(self) -> None: ...

    async def _process_info(self, info: dict[str, Any]) -> None: ...

    def drop(self, subject: bytes) -> None:
        """Note a message that was skipped because of its subject or reply subject."""


class ProtocolParser(Parser):
    """As nats-py's parser, which creates the attributes `buf`, `state`, `needed`, `header_needed`.

    Args:
        client: gets what was parsed, in order.
    """

    nc: ReceivingClient
    buf: bytearray

    def __init__(self, client: ReceivingClient) -> None:
        super().__init__(client)

    def reset(self) -> None:
        super().reset()
        self._skips = False
        self._address: tuple[int, bytes, bytes] = 0, b"", b""

    async def parse(self, data: bytes = b"") -> None:
        """Parse what the server sent; an incomplete rest waits for more.

        Raises:
            ProtocolError: the server broke the protocol; the connection is useless.
        """
        self.buf.extend(data)
        while self.buf:  # another one after a reset, which a message may cause
            if self.state == AWAITING_MSG_PAYLOAD:
                if len(self.buf) < self.needed + _END_BYTES:
                    return
                await self._take_payload(0)
            elif (line := _MSG.match(self.buf)) is not None:
                subject, sid, reply, size = line.groups()
                self._address = int(sid), subject, reply or b""
                await self._take_message(line.end(), int(size), 0)
            elif (line := _HMSG.match(self.buf)) is not None:
                subject, sid, reply, headers, size = line.groups()
                self._address = int(sid), subject, reply or b""
                await self._take_message(line.end(), int(size), int(headers))
            elif not await self._take_line():
                return

    async def _take_message(self, start: int, needed: int, header_needed: int) -> None:
        """Take the message whose payload begins at `start` of the buffer, now or when all of it has
        arrived."""
        self.needed, self.header_needed = needed, header_needed
        if header_needed > needed:
            raise ProtocolError(f"nats: {header_needed} bytes of headers in {needed}")
        if len(self.buf) >= start + needed + _END_BYTES:
            await self._take_payload(start)
        else:
            del self.buf[:start]
            self.state = AWAITING_MSG_PAYLOAD

    async def _take_payload(self, start: int) -> None:
        body, end = start + self.header_needed, start + self.needed
        headers = bytes(self.buf[start:body]) if body > start else b""
        payload = bytes(self.buf[body:end])
        del self.buf[: end + _END_BYTES]
        self.state = AWAITING_CONTROL_LINE
        if self._skips:
            self._skips = False
        elif headers or not self.nc.take(*self._address, payload):
            await self.nc._process_msg(*self._address, payload, headers)

    async def _take_line(self) -> bool:
        """Handle a line that is no usual message; returns whether there was a whole line."""
        end = self.buf.find(b"\n") + 1
        if not end:
            return False
        line = bytes(self.buf[:end])
        if (message := _ANY_MSG.fullmatch(line)) is not None:
            subject, sid, reply, size = message.groups()
            headers = b"0"
        elif (message := _ANY_HMSG.fullmatch(line)) is not None:
            subject, sid, reply, headers, size = message.groups()
        else:
            del self.buf[:end]
            await self._operate(line)
            return True
        self._address = int(sid), subject, reply or b""
        self._skips = not _is_readable(subject, reply or b"")
        if self._skips:
            self.nc.drop(subject)
        await self._take_message(end, int(size), int(headers))
        return True

    async def _operate(self, line: bytes) -> None:
        operation = _OPERATION.fullmatch(line)
        if operation is None:
            raise ProtocolError(f"nats: unknown protocol: {line[:80]!r}")
        argument = operation[2]
        match operation[1]:
            case b"PING":
                await self.nc._process_ping()
            case b"PONG":
                await self.nc._process_pong()
            case b"-ERR":
                # With whatever bytes somebody used in a subject.
                await self.nc._process_err(argument.decode(errors="backslashreplace").lower())
            case b"INFO":
                try:
                    info = json.loads(argument)
                except ValueError:
                    raise ProtocolError("nats: the server's INFO is no JSON") from None
                await self.nc._process_info(info)


def _is_readable(subject: bytes, reply: bytes) -> bool:
    """Whether a handler may see a subject: it refuses it with an error if it is no name of ours. A
    reply subject is written into a line of our own."""
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return False
    return text.isprintable() and all(0x20 < byte < 0x7F for byte in reply)
