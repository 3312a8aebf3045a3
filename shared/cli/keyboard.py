"""Single key presses on the terminal, without Enter."""

import asyncio
import contextlib
import os
import re
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable
from typing import Any

_ESCAPE_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""An arrow key, a function key, or Alt with another key: ignored."""


class Keyboard:
    """Calls `on_key` on the event loop with each typed character, from `start` to `stop`.

    Calls it with "q" when the terminal is closed. Does nothing if standard input is not a terminal.

    A thread reads the keys: an event loop would make the terminal non-blocking, also for output.
    """

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._before: list[Any] = []
        self._thread: threading.Thread | None = None
        self._stop_writer = -1

    def start(self) -> None:
        """Start reading; also allowed again after `stop`."""
        if self._thread is not None or not sys.stdin.isatty():
            return
        terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal)
        stop_reader, self._stop_writer = os.pipe()
        loop = asyncio.get_running_loop()
        arguments = (loop, terminal, stop_reader)
        self._thread = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Restore the terminal."""
        if self._thread is None:
            return
        os.close(self._stop_writer)
        self._thread.join()
        self._thread = None
        with contextlib.suppress(termios.error):  # the terminal is closed
            # Flush: keys typed here must not become input of the shell.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, self._before)

    def _read(self, loop: asyncio.AbstractEventLoop, terminal: int, stop_reader: int) -> None:
        while True:
            readable, _, _ = select.select([terminal, stop_reader], [], [])
            if stop_reader in readable:
                break
            typed = b""
            with contextlib.suppress(OSError):
                typed = os.read(terminal, 64)
            if not typed:
                loop.call_soon_threadsafe(self._on_key, "q")
                break
            for character in _ESCAPE_SEQUENCE.sub(b"", typed).decode(errors="ignore"):
                loop.call_soon_threadsafe(self._on_key, character)
        os.close(stop_reader)
