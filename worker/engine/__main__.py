"""Entry of the engine process: `python -m worker.engine --fd N ...`, started by the agent."""

import argparse
import faulthandler
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from shared import freed_memory
from shared.settings.worker import WorkerSettings
from worker.engine.blas import load_fast_blas
from worker.link.facts import EngineAlive

INTERVAL_S = 1.0
_BEATS_PER_RETURN = round(freed_memory.INTERVAL_S / INTERVAL_S)


def start_heartbeat(send: Callable[[EngineAlive], None], stuck_s: Callable[[], float]) -> None:
    """Send `EngineAlive` until the process ends, and now and then return freed memory.

    Args:
        stuck_s: returns the seconds since the engine's thread began its current step.
    """

    def beat() -> None:
        for beats in itertools.count(1):
            time.sleep(INTERVAL_S)
            send(EngineAlive(round(stuck_s(), 1)))
            if beats % _BEATS_PER_RETURN == 0:
                freed_memory.return_freed_memory()

    threading.Thread(target=beat, name="pulse", daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(prog="worker.engine")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--activity-fd", type=int, required=True)
    parser.add_argument("--settings", required=True, help="the section `worker` as JSON")
    parser.add_argument(
        "--engines", type=int, required=True, help="number of this worker's engines"
    )
    parser.add_argument("--kv-folder", type=Path, help="folder of the KV cache on disk")
    arguments = parser.parse_args()
    settings = WorkerSettings.model_validate_json(arguments.settings)
    batching = settings.continuous_batching
    adapts = batching.enabled and settings.adaptive_batching.enabled

    faulthandler.enable()  # prints the stack after a crash in native code

    # The agent ends this process: by an order, by closing the socket, or by killing it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    blas = load_fast_blas()

    # Importing MLX before the BLAS is loaded would bind it to the reference BLAS.
    from worker.engine.__main__ import start_heartbeat
    from worker.engine.agent_connection import AgentConnection
    from worker.engine.device import (
        device_name,
        memory_limit_bytes,
        raise_wired_limit,
        retain_freed_memory,
    )
    from worker.engine.kv_block_store import kv_memory_settings
    from worker.engine.loop import Engine
    from worker.link.activity import EngineActivityRecord
    from worker.link.facts import EngineStarted
    from worker.link.orders import Order

    def enqueue(order: Order) -> None:
        engine.enqueue(order)

    channel = AgentConnection(socket.socket(fileno=arguments.fd), enqueue)
    engine = Engine(
        channel.send,
        channel.wait_for_capacity,
        max_batch_size=batching.max_rows,
        max_chunk_tokens=batching.max_chunk_tokens,
        max_decode_stall_s=batching.max_decode_stall_ms / 1000,
        kv_budget_bytes=batching.kv_memory_mb and batching.kv_memory_mb * 1_000_000,
        engines=arguments.engines,
        adaptive=settings.adaptive_batching if adapts else None,
        min_batch_size=batching.min_batch_size,
        kv_memory=kv_memory_settings(
            settings, arguments.kv_folder, memory_limit_bytes(), engines=arguments.engines
        ),
        activity=EngineActivityRecord.open(arguments.activity_fd),
        preparation_limit_s=settings.engines.preparation_timeout_ms / 1000,
    )
    retain_freed_memory()
    raise_wired_limit()
    name, accelerator = device_name()
    channel.send(
        EngineStarted(
            device=name,
            accelerator=accelerator,
            blas=blas,
            threads=int(os.environ.get("OPENBLAS_NUM_THREADS", "0")),
            memory_limit_bytes=memory_limit_bytes(),
            versions={package: version(package) for package in ("mlx", "mlx-lm")},
        )
    )
    channel.start()
    start_heartbeat(channel.send, lambda: engine.stuck_s)
    engine.run()
    channel.close()


if __name__ == "__main__":
    main()
