"""The engine's heartbeat, once a second, from a thread of its own: also while MLX computes."""

import threading
import time
from collections.abc import Callable

from worker.link.facts import EngineAlive

INTERVAL_S = 1.0


def start_heartbeat(send: Callable[[EngineAlive], None], stuck_s: Callable[[], float]) -> None:
    """Send `EngineAlive` until the process ends.

    Args:
        stuck_s: returns the seconds since the engine's thread began its current step.
    """

    def beat() -> None:
        while True:
            time.sleep(INTERVAL_S)
            send(EngineAlive(round(stuck_s(), 1)))

    threading.Thread(target=beat, name="pulse", daemon=True).start()
