"""A module that grows holds two nouns."""

from pathlib import Path

_ROOT = Path(__file__).parents[1]
_MAX_LINES = 400


def test_no_module_has_more_than_400_lines() -> None:
    lines = {
        str(path.relative_to(_ROOT)): path.read_text().count("\n")
        for package in ("controller", "mlx_nats_cluster", "shared", "worker")
        for path in (_ROOT / package).rglob("*.py")
    }
    assert lines
    assert {name: count for name, count in lines.items() if count > _MAX_LINES} == {}
