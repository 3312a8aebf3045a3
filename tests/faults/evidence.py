"""All that a campaign leaves for the judge: what clients saw, which faults were injected, and what
the processes held before and after. It can be kept as a file and judged again."""

import gzip
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from tests.faults.footprint import Footprint
from tests.faults.records import Answer, Record, WireRecord


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that happened, and when (seconds of the monotonic clock).

    Attributes:
        until: its targets were well again.
        loses_messages: what was on its way to clients may be lost for ever.
    """

    kind: str
    targets: tuple[str, ...]
    at: float
    until: float
    loses_messages: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What the processes of a cluster held at a moment, by their names.

    Attributes:
        requests: that controllers and workers had, active and queued ones.
        tasks: of asyncio; of the controllers together.
    """

    requests: Mapping[str, int]
    tasks: Mapping[str, int]
    footprints: Mapping[str, Footprint]


@dataclass(slots=True)
class Evidence:
    """Everything that was sent, heard, injected and left behind.

    Attributes:
        streams: through the client library, each with its true answer.
        wire: by a plain NATS client, likewise.
        sessions: the names of the streams of each conversation, in the order of sending.
        problems: what did not recover in time, in words.
        after: when all had ended, and as little was left as came to be; None where the cluster
            did not recover.
    """

    streams: list[tuple[Record, Answer]] = field(default_factory=list)
    wire: list[tuple[WireRecord, Answer]] = field(default_factory=list)
    sessions: list[list[str]] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    before: Observation | None = None
    after: Observation | None = None

    @property
    def tokens(self) -> int:
        return sum(record.tokens for record, _ in self.streams)

    def only(self, names: Collection[str]) -> "Evidence":
        """The same, of these streams alone: names of `streams`, request ids of `wire`."""
        return replace(
            self,
            streams=[each for each in self.streams if each[0].name in names],
            wire=[each for each in self.wire if each[0].request_id in names],
            sessions=[turns for turns in self.sessions if set(turns) <= set(names)],
        )

    def save(self, file: Path) -> None:
        """Write it as JSON, compressed: messages are much alike."""
        file.write_bytes(gzip.compress(_AS_JSON.dump_json(self), mtime=0))

    @staticmethod
    def load(file: Path) -> "Evidence":
        """What `save` wrote."""
        return _AS_JSON.validate_json(gzip.decompress(file.read_bytes()))


_AS_JSON = TypeAdapter(Evidence)
