"""Which tests may run beside each other (`pytest -n 4 --dist loadgroup`).

Tests of one group run one after another in one process: those of a module, which share its
servers; those of one shared cluster, which is started once for all of them; those whose clusters
announce themselves to this machine; and those that compute more than they wait, so that a core is
left for everybody else.
"""

from pathlib import Path

import pytest

from tests.access.plugin import is_secured

_ROOT = Path(__file__).parent
_COMPUTING = (
    "faults/test_campaign.py",
    "worker/engine/",
    "architectures/",
    "test_rollout.py",
    "fidelity/",
    "worker/kv_memory/test_disk_limit.py",
    "page/test_speed.py",
)
_ANNOUNCING = (
    "test_discovery.py",
    "test_cluster_up.py",
    "shared/discovery/",
)
"""Whose clusters a worker on this machine would find."""
_CLUSTERS = ("demo_cluster", "tiny_cluster")
_LONGEST_FIRST = (
    *_COMPUTING,
    "controller/gateway/",
    *_ANNOUNCING,
    "worker/test_agent.py",
    "worker/test_models.py",
    "controller/test_lease.py",
)
"""What begins late and takes long would end alone, with the other processes idle."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before the hook of xdist, which puts the group into the test's id."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _rank(_path(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The scheduler sees groups in ids alone, and without them would run any test anywhere."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "xdist knows no groups"


def _group(item: pytest.Item) -> str:
    path = _path(item)
    if path.startswith(_COMPUTING):
        return "computing"
    if path.startswith(_ANNOUNCING):
        return "announcing"
    fixtures = getattr(item, "fixturenames", ())
    for cluster in _CLUSTERS:
        if cluster in fixtures:
            return f"{cluster} {is_secured(item)}"
    return path


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(_ROOT).as_posix()


def _rank(path: str) -> int:
    ranks = (rank for rank, start in enumerate(_LONGEST_FIRST) if path.startswith(start))
    return next(ranks, len(_LONGEST_FIRST))
