"""Texts per second through a cluster, beside sentence-transformers; and how long a stream waits
while texts are embedded.

    python -m benchmarks.embeddings [--texts 1000] [--repeats 5] [--peer PYTHON]

One worker with default settings and all-MiniLM-L6-v2. PYTHON is the interpreter of an environment
that has sentence-transformers, which takes turns with the cluster on the same cores (it needs
PyTorch, which nothing here installs: `python3 -m venv peer && peer/bin/pip install
sentence-transformers`). The longest gap of a stream is compared with `max_decode_stall_ms`. Writes
results/embeddings.json.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.children import started
from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, ratios, save, spread
from shared.client import Cluster, connect
from shared.settings.worker import ContinuousBatchingSettings
from tests.minilm import ensure
from worker.models import demo_model

_WORDS = "a river under seven bright lamps walks past quiet paper engines that nobody said".split()
_STALL_MS = ContinuousBatchingSettings().max_decode_stall_ms
_STREAM_TOKENS = 2000
_PEER = """
import json, sys, time
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
model.encode(["warm up"] * 32)
print("ready", flush=True)
for line in sys.stdin:
    texts = json.loads(line)
    started = time.perf_counter()
    model.encode(texts)
    print(time.perf_counter() - started, flush=True)
"""


class Peer:
    """sentence-transformers in a process of its own, that waits between its turns."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        if self._read() != "ready":
            raise SystemExit("--peer: sentence-transformers did not start")

    def seconds(self, inputs: list[str]) -> float:
        """Embed the texts; return how long it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(inputs) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def _peer(python: str | None, folder: Path) -> Iterator[Peer | None]:
    if python is None:
        yield None
        return
    command = [python, "-c", _PEER, str(folder)]
    pipe = subprocess.PIPE
    with started(
        command, {}, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield Peer(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=1000, help="of 5 to 50 words")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON", help="has sentence-transformers")
    arguments = parser.parse_args()
    folder = ensure()
    models = {"minilm": {"path": str(folder)}, "demo": {"path": str(demo_model.folder())}}
    settings = {
        "CLUSTER__WORKER__ENGINES__COUNT": "auto",
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "true",
        "CLUSTER__MODELS": json.dumps(models),
        "CLUSTER__SKILLS": json.dumps({"embed": ["minilm"], "chat": ["demo"]}),
        "CLUSTER__WORKER__PRE_WARMING__MODELS": json.dumps([{"model": name} for name in models]),
    }
    with _peer(arguments.peer, folder) as peer, local_cluster(settings=settings) as local:
        runs = asyncio.run(_measure(local.url, arguments.texts, arguments.repeats, peer))
    _report(runs, arguments.texts)


async def _measure(url: str, count: int, repeats: int, peer: Peer | None) -> list[dict[str, float]]:
    runs: list[dict[str, float]] = []
    async with connect(url) as cluster:
        await cluster.embed(_inputs(64, -1))
        await _gaps(cluster, 20)
        for repeat in range(repeats):
            print(f"run {repeat + 1}/{repeats}", file=sys.stderr)
            inputs = _inputs(count, repeat)
            started = time.perf_counter()
            embeddings = await cluster.embed(inputs, timeout_ms=3_600_000)
            seconds = time.perf_counter() - started
            run = {
                "texts_per_s": count / seconds,
                "tokens_per_s": embeddings.usage.prompt_tokens / seconds,
            }
            if peer is not None:
                run["peer_texts_per_s"] = count / await asyncio.to_thread(peer.seconds, inputs)
            run["alone_gap_ms"] = max(await _gaps(cluster, 200)) * 1000
            embedding = asyncio.create_task(cluster.embed(inputs, timeout_ms=3_600_000))
            beside = await _gaps(cluster, _STREAM_TOKENS, embedding)
            await embedding
            run["beside_gap_ms"] = max(beside) * 1000
            run["beside_tokens"] = len(beside) + 1
            runs.append(run)
    return runs


async def _gaps(
    cluster: Cluster, max_tokens: int, until: "asyncio.Task[Any] | None" = None
) -> list[float]:
    """The times between the outputs of one stream, in seconds; it is left when `until` is done."""
    times = []
    fields: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    async with cluster.stream("Tell a long story.", **fields) as stream:
        async for _ in stream:
            times.append(time.perf_counter())
            if until is not None and until.done():
                break
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _inputs(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(5, 50))) for _ in range(count)]


def _report(runs: list[dict[str, float]], count: int) -> None:
    names = {
        "texts_per_s": "texts/s, cluster",
        "tokens_per_s": "tokens/s, cluster",
        "peer_texts_per_s": "texts/s, sentence-transformers",
        "alone_gap_ms": "longest gap of a stream alone, ms",
        "beside_gap_ms": "longest gap beside the texts, ms",
        "beside_tokens": "tokens of the stream meanwhile",
    }
    medians: dict[str, Any] = {
        name: spread(run[name] for run in runs) for name in names if name in runs[0]
    }
    medians["gap_of_stall"] = spread(run["beside_gap_ms"] / _STALL_MS for run in runs)
    names["gap_of_stall"] = f"of max_decode_stall_ms ({_STALL_MS})"
    if "peer_texts_per_s" in runs[0]:
        own, others = ([run[name] for run in runs] for name in ("texts_per_s", "peer_texts_per_s"))
        medians["of_peer"] = ratios(own, others)
        names["of_peer"] = "cluster of sentence-transformers"
    print_table(
        f"medians of {len(runs)} (minimum-maximum); {count} texts",
        ("", "median", "minimum", "maximum"),
        (
            (names[name], *(f"{values[which]:.2f}" for which in ("median", "min", "max")))
            for name, values in medians.items()
        ),
    )
    print(f"written to {save('embeddings', {'medians': medians, 'runs': runs})}")


if __name__ == "__main__":
    main()
