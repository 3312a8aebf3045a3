"""Which servers of a test module are secured, and that nothing is refused there by mistake."""

from collections.abc import Iterator

import pytest

from tests.access.roles import draw, drawn_for, refused


def is_secured(item: pytest.Item) -> bool:
    """Whether the servers of a test are secured. A module that is about one kind of server says so:
    `SECURED = True`, or `False`."""
    module = item.getparent(pytest.Module)
    assert module is not None
    return drawn_for(module.nodeid, getattr(module.obj, "SECURED", None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    draw(is_secured(item))


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
