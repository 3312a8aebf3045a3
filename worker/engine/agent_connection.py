"""The engine's end of the socket pair, with a reader and a writer thread. The writer sends what the
socket does not accept at once, so that MLX never waits.

End of file means that the agent is dead: the process then ends at once by `os._exit`, even in
the middle of a prefill.
"""

import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable

from worker.link.facts import Fact
from worker.link.frames import (
    BACKLOG_LIMIT_BYTES,
    EXIT_AGENT_GONE,
    HEADER,
    decode_body,
    encode_fact,
    frame_length,
)
from worker.link.orders import Order


class AgentConnection:
    """Frames in both directions. `send` may be called by any thread."""

    def __init__(self, connection: socket.socket, on_order: Callable[[Order], None]) -> None:
        """`on_order` is called on the reader thread, once per order."""
        self._connection = connection
        self._on_order = on_order
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="channel-write", daemon=True)
        self._backlog_bytes = 0
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._drained.set()

    def start(self) -> None:
        self._writer.start()
        threading.Thread(target=self._read, name="channel-read", daemon=True).start()

    def send(self, fact: Fact) -> None:
        """Send a fact to the agent, or queue it behind facts that are not sent yet. The calling
        thread writes to the socket itself: waking a thread for each step costs a tenth of the step
        of a small model."""
        frame = encode_fact(fact)
        with self._lock:
            if self._backlog_bytes == 0:
                frame = frame[self._send_at_once(frame) :]
            self._backlog_bytes += len(frame)
            if self._backlog_bytes > BACKLOG_LIMIT_BYTES:
                self._drained.clear()
            if frame:
                self._outgoing.put(frame)

    def _send_at_once(self, frame: bytes) -> int:
        """Send without blocking; return the number of bytes that the socket accepted."""
        try:
            return self._connection.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            os._exit(EXIT_AGENT_GONE)

    def wait_for_capacity(self) -> None:
        """Block while the unread backlog of the agent is above the limit."""
        self._drained.wait()

    def close(self) -> None:
        """Wait until all facts are sent. `send` must not be called afterwards."""
        self._outgoing.put(None)
        self._writer.join()

    def _read(self) -> None:
        stream = self._connection.makefile("rb")
        try:
            while header := stream.read(HEADER.size):
                body = stream.read(frame_length(header))
                self._on_order(decode_body(body))  # type: ignore[arg-type]
        except OSError:
            pass  # the dying agent reset the connection
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(EXIT_AGENT_GONE)

    def _write(self) -> None:
        while (frame := self._outgoing.get()) is not None:
            try:
                self._connection.sendall(frame)
            except OSError:
                os._exit(EXIT_AGENT_GONE)
            with self._lock:
                self._backlog_bytes -= len(frame)
                if self._backlog_bytes <= BACKLOG_LIMIT_BYTES // 2:
                    self._drained.set()
