"""What NATS servers refused somebody, as their logs tell: who is refused something goes on as if
nothing had happened, and its test may pass."""

from pathlib import Path

_VIOLATIONS = ("Publish Violation", "Subscription Violation")


class Refusals:
    """Of all servers of a test run."""

    def __init__(self) -> None:
        self._read_bytes: dict[Path, int] = {}

    def watch(self, log: Path) -> None:
        """From now on; the file may not be there yet."""
        self._read_bytes.setdefault(log, log.stat().st_size if log.exists() else 0)

    def new(self) -> list[str]:
        """The lines since this was asked last."""
        return [line for log in self._read_bytes for line in self._new_of(log)]

    def _new_of(self, log: Path) -> list[str]:
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._read_bytes[log])
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes[log] += len(whole) + len(newline)
        lines = whole.decode(errors="replace").splitlines()
        return [line for line in lines if any(words in line for words in _VIOLATIONS)]
