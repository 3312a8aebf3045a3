"""What a NATS server sends, cut into protocol frames, however TCP cut it into segments."""

import json
import re
from dataclasses import dataclass

_END = b"\r\n"
_BLANKS = re.compile(rb"[ \t]+")
_LONGEST_LINE_BYTES = 1024 * 1024
_MESSAGES = (b"MSG", b"HMSG")
_LINES = (b"INFO", b"PING", b"PONG", b"+OK", b"-ERR")


class ProtocolBroken(Exception):
    """The bytes are nothing that a NATS server sends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One protocol line, with its payload where it has one, as the bytes on the wire.

    Attributes:
        subject: of a message (MSG, HMSG); None for a protocol line.
    """

    operation: str
    raw: bytes
    subject: str | None = None


class FrameReader:
    """Takes segments, gives whole frames; nothing but the frames' own bytes is ever made up
    or left out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """How much of a frame has come whose rest has not."""
        return len(self._buffer)

    def feed(self, segment: bytes) -> list[Frame]:
        """The frames that this segment completes.

        Raises:
            ProtocolBroken: an unknown operation, a bad length, or a payload without an end.
        """
        self._buffer += segment
        frames: list[Frame] = []
        start = 0
        while (frame := self._frame_at(start)) is not None:
            frames.append(frame)
            start += len(frame.raw)
        del self._buffer[:start]
        return frames

    def _frame_at(self, start: int) -> Frame | None:
        end = self._buffer.find(_END, start)
        if end < 0:
            if len(self._buffer) - start > _LONGEST_LINE_BYTES:
                raise ProtocolBroken("a line without an end")
            return None
        words = _BLANKS.split(bytes(self._buffer[start:end]).strip(b" \t"))
        operation = words[0].upper()
        if operation in _LINES:
            raw = bytes(self._buffer[start : end + len(_END)])
            return Frame(operation.decode(), raw)
        if operation not in _MESSAGES or len(words) < 4:
            raise ProtocolBroken(f"no line of a NATS server: {bytes(self._buffer[start:end])!r}")
        return self._message_at(start, end, words)

    def _message_at(self, start: int, line_end: int, words: list[bytes]) -> Frame | None:
        """`MSG <subject> <sid> [reply] <#bytes>`; HMSG counts its headers, then all bytes."""
        if not words[-1].isdigit():
            raise ProtocolBroken(f"no length: {words[-1]!r}")
        payload_end = line_end + len(_END) + int(words[-1])
        whole = payload_end + len(_END)
        if len(self._buffer) < whole:
            return None
        if self._buffer[payload_end:whole] != _END:
            raise ProtocolBroken(f"a payload of {int(words[-1])} bytes that goes on after them")
        raw = bytes(self._buffer[start:whole])
        return Frame(words[0].upper().decode(), raw, words[1].decode(errors="backslashreplace"))


def at_address(frame: Frame, host: str, port: int) -> Frame:
    """The INFO of a server as if it were at another address, and alone: a client that is
    told of the real addresses would reconnect there."""
    _, _, body = frame.raw.partition(b" ")
    info = json.loads(body)
    for urls in ("connect_urls", "ws_connect_urls"):
        info.pop(urls, None)
    info |= {"host": host, "port": port}
    return Frame("INFO", b"INFO " + json.dumps(info).encode() + b" \r\n")


def asks_for_tls(frame: Frame) -> bool:
    """Whether it is the INFO of a server with which all that follows is encrypted."""
    if frame.operation != "INFO":
        return False
    info = json.loads(frame.raw.partition(b" ")[2])
    return bool(info.get("tls_required"))
