"""How fast a worker gives others a model's files, and what that costs the streams it serves.

    python -m benchmarks.peer_files [--mb 512] [--trials 5]

One process gives a content as a worker does, this one takes it as a worker does: read from disk,
TLS, hashed, written. The limits, in the same run: the same number of bytes through one TLS
connection between two processes, from memory and written nowhere; and hashed and written without
any network. One after the other, as one thread does them, they take as long as both. Beside it
the giving process sleeps 1 ms again and again, in the loop that sends tokens: how late it wakes is
how late a token may be.
Writes results/peer_files.json.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.children import leave_nothing_behind
from benchmarks.measures import percentiles_ms, print_table, save, spread
from shared.access.certificates import new_authority, new_server
from shared.messages.files import FilesOffer
from tests.worker.peer_files.offering import Offering
from worker.models.blob_download import BlobDownload
from worker.models.hub import HubFile, HubListing
from worker.peer_files.peer import RemoteFilePeer

_REPO = "owner/model"
_LIMITED_MB_PER_S = 100
_PIECE_BYTES = 1024 * 1024
_SLEEP_S = 0.001
_IDLE_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--trials", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = _made(Path(folder) / "giving", arguments.mb * 1_000_000)
        trials = [_trial(Path(folder), file) for _ in range(arguments.trials)]
    names = list(trials[0])
    print_table(
        f"{arguments.mb} MB from one process to another",
        ("", "median", "min", "max"),
        [
            (name, *(f"{v:.2f}" for v in spread([trial[name] for trial in trials]).values()))
            for name in names
        ],
    )
    save("peer_files", {"mb": arguments.mb, "trials": trials})


def _trial(folder: Path, file: HubFile) -> dict[str, float]:
    plain_s, written_s = _plain_tls_s(file.size_bytes), _written_s(folder, file.size_bytes)
    _, idle_ms = _beside(folder, None, lambda offer: time.sleep(_IDLE_S))
    took_s, busy_ms = _beside(folder, None, lambda offer: _fetch(folder, file, offer))
    _, limited_ms = _beside(
        folder, _LIMITED_MB_PER_S * 1e6, lambda offer: _fetch(folder, file, offer)
    )
    mb = file.size_bytes / 1e6
    return {
        "MB/s": mb / took_s,
        "MB/s, plain TLS": mb / plain_s,
        "MB/s, hashed and written": mb / written_s,
        "of both": (plain_s + written_s) / took_s,
        "late, idle: p95, ms": idle_ms,
        f"late, {_LIMITED_MB_PER_S} MB/s: p95, ms": limited_ms,
        "late, no limit: p95, ms": busy_ms,
    }


def _made(cache: Path, size_bytes: int) -> HubFile:
    """A content in a cache of the hub."""
    blobs = cache / f"models--{_REPO.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    content = os.urandom(_PIECE_BYTES) * (size_bytes // _PIECE_BYTES + 1)
    name = sha256(content[:size_bytes]).hexdigest()
    (blobs / name).write_bytes(content[:size_bytes])
    return HubFile("model.safetensors", size_bytes, name)


def _beside(
    folder: Path, bytes_per_s: float | None, do: Callable[[FilesOffer], object]
) -> tuple[float, float]:
    """How long something took beside a process that gives; and how late that woke, in ms."""
    ours, theirs = multiprocessing.Pipe()
    with _running(_give, folder / "giving", bytes_per_s, theirs):
        theirs.close()  # so that we hear of its end
        offer = ours.recv()
        begin = time.perf_counter()
        do(offer)
        took_s = time.perf_counter() - begin
        ours.send("enough")
        return took_s, ours.recv()


@contextlib.contextmanager
def _running(run: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """A process that ends by itself, or with an error here. Not forked: a copy of this process
    would hold what tells the reaper that we have ended."""
    resource_tracker.ensure_running()  # it is nothing to reap: it ends last, by itself
    leave_nothing_behind()
    process = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
    process.start()
    try:
        yield
        process.join()
    finally:
        process.kill()
        process.join()


def _give(cache: Path, bytes_per_s: float | None, pipe: Connection) -> None:
    with Offering(cache, bytes_per_s=bytes_per_s) as offering:
        pipe.send(offering.offer(_REPO, None))
        pipe.send(asyncio.run(_lateness_ms(pipe)))


async def _lateness_ms(pipe: Connection) -> float:
    late_s: list[float] = []
    while not pipe.poll():
        begin = time.perf_counter()
        await asyncio.sleep(_SLEEP_S)
        late_s.append(time.perf_counter() - begin - _SLEEP_S)
    return percentiles_ms(late_s)["p95"]


def _fetch(folder: Path, file: HubFile, offer: FilesOffer) -> None:
    taking = Path(tempfile.mkdtemp(dir=folder))
    listing = HubListing(_REPO, "0" * 40, (file.name,), (file,))
    blob = BlobDownload(file, listing, taking, taking / "lock")
    blob.use_peers([RemoteFilePeer(offer)], print)
    blob.fetch()
    assert blob.bytes_by_source == {offer.worker: file.size_bytes}
    blob.path.unlink()


def _written_s(folder: Path, size_bytes: int) -> float:
    piece, digest = os.urandom(_PIECE_BYTES), sha256()
    begin = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size_bytes // _PIECE_BYTES + 1):
            digest.update(piece)
            file.write(piece)
        file.flush()
        return time.perf_counter() - begin


def _plain_tls_s(size_bytes: int) -> float:
    authority = new_authority("benchmark")
    identity = new_server(authority, ["localhost"])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with _running(_send, listening, identity.certificate + identity.key, size_bytes):
            context = ssl.create_default_context(cadata=authority.certificate.decode())
            with socket.create_connection(listening.getsockname()) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as connection:
                    begin = time.perf_counter()
                    while connection.recv(_PIECE_BYTES):
                        pass
                    took_s = time.perf_counter() - begin
    return took_s


def _send(listening: socket.socket, pem: bytes, size_bytes: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file.name)
    accepted, _ = listening.accept()
    with context.wrap_socket(accepted, server_side=True) as connection:
        piece = os.urandom(_PIECE_BYTES)
        for _ in range(size_bytes // _PIECE_BYTES + 1):
            connection.sendall(piece)


if __name__ == "__main__":
    main()
