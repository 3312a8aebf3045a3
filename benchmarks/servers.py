"""Servers as they come: `cluster up` and `mlx_lm.server` with the demo model, over HTTP."""

import contextlib
import json
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx

from benchmarks.children import started
from benchmarks.threads import as_many_threads
from worker.models import demo_model

Start = Callable[[], contextlib.AbstractContextManager[tuple[str, str]]]
"""Starts a server; what that yields is its address, and its name for the model."""


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, str]]:
    """With default settings, in a folder of its own."""
    command = [str(Path(sysconfig.get_path("scripts")) / "cluster"), "up", "--json"]
    command += ["--nats-port", "0", "--http-port", "0"]
    with tempfile.TemporaryDirectory(prefix="mlx-as-it-comes-") as folder:
        own = {"XDG_DATA_HOME": folder, "CLUSTER__WORKER__KV_CACHE__DISK_PATH": f"{folder}/kv"}
        with started(command, own, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the cluster did not start")
            yield str(json.loads(line)["http_url"]), "demo"


@contextlib.contextmanager
def mlx_lm_server(options: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """With its defaults, but for these options."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "benchmarks.mlx_lm_server", "--model", str(demo_model.folder())),
        *("--port", str(port), "--log-level", "ERROR"),
    ]
    with started([*command, *options], as_many_threads()) as process:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/health", timeout=5)
                break
            if process.poll() is not None:
                raise SystemExit("mlx_lm.server did not start")
            time.sleep(0.2)
        yield url, "default_model"
