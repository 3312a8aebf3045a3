"""What pytest does with `--secured`."""

from collections.abc import Iterator

import pytest

from tests.access.roles import refused


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (marker := item.get_closest_marker("open_server")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"not with --secured: {marker.args[0]}"))


@pytest.fixture(autouse=True, scope="session")
def _nothing_was_refused_at_the_end() -> Iterator[None]:
    yield
    _fail_for_refusals()


@pytest.fixture(autouse=True)
def _nothing_was_refused() -> Iterator[None]:
    """A test during which a server refused something fails, unless it is about that."""
    yield
    _fail_for_refusals()


def _fail_for_refusals() -> None:
    if lines := refused():
        pytest.fail("\n".join(["a NATS server refused:", *lines]), pytrace=False)
