"""Limits how many log lines the messages of clients cause: a flood of bad messages must not become
a flood of lines."""

import logging
import time
from collections.abc import Callable

_WINDOW_S = 60.0
_MAX_LINES = 100


class LogLimit:
    """One line per client and minute, and at most 100 lines a minute of all clients.

    Args:
        clock: returns seconds; never goes back.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._since = clock()
        self._clients: set[str] = set()
        self._left_out = 0

    def allows(self, client: str) -> bool:
        """Whether a line about a message of the client is to be logged. The lines that were left
        out are counted in a line after the end of their minute."""
        if self._clock() - self._since >= _WINDOW_S:
            if self._left_out:
                self._logger.warning("%d more messages of clients were ignored", self._left_out)
            self._since, self._left_out = self._clock(), 0
            self._clients.clear()
        if client in self._clients or len(self._clients) >= _MAX_LINES:
            self._left_out += 1
            return False
        self._clients.add(client)
        return True
