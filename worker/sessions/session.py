"""One conversation of a client, over all its turns."""

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from shared.ids import ClientName, ModelId, SessionKey
from shared.messages.control import SessionStatus
from shared.messages.conversation import Message, Turn, turn_bytes
from worker.link.facts import CachedSequenceMeasurements

_STORED = ("client", "id", "model", "turns", "tokens", "engine", "end", "created_at", "used_at")


@dataclass(slots=True, eq=False)
class Session:
    """
    Attributes:
        turns: number of answered turns that this worker knows of.
        said: all messages, including the answers: empty if the client always sends the whole
            conversation, None if not all are known.
        tokens: tokens of its sequence when that was cached last.
        engine, end: the engine that caches its sequence, and the last block of the sequence.
        created_at, used_at: seconds since 1970.
        active: number of running requests.
        measured: how much of its sequence is cached now.
    """

    client: ClientName
    id: str
    model: ModelId
    created_at: float
    used_at: float
    turns: int = 0
    said: list[Turn] | None = field(default_factory=list)
    tokens: int = 0
    engine: int = 0
    end: str | None = None
    pinned: bool = False
    active: int = 0
    measured: CachedSequenceMeasurements | None = None

    @property
    def key(self) -> SessionKey:
        return self.client, self.id

    @property
    def message_bytes(self) -> int:
        """Approximate size of its messages."""
        return sum(turn_bytes(turn) + 100 for turn in self.said or [])

    @property
    def answers(self) -> int:
        """Number of answers among its messages, including those of other workers."""
        return sum(message["role"] == "assistant" for message in self.said or [])

    @property
    def own_bytes(self) -> int:
        return self.measured.own_bytes if self.measured else 0

    def to_json(self) -> bytes:
        """Return what is stored on disk."""
        return orjson.dumps({name: getattr(self, name) for name in (*_STORED, "pinned", "said")})

    @classmethod
    def from_json(cls, data: bytes) -> "Session":
        """Raises ValueError if `to_json` did not write this."""
        try:
            session = cls(**orjson.loads(data))
        except TypeError as error:
            raise ValueError(str(error)) from None
        strings = (session.client, session.id, session.model)
        numbers = (session.created_at, session.used_at, session.turns, session.tokens)
        if not (
            all(isinstance(each, str) for each in strings)
            and all(isinstance(each, int | float) for each in (*numbers, session.engine))
            and (session.end is None or _is_hex(session.end))
            and (session.said is None or all(map(_is_message, session.said)))
        ):
            raise ValueError("a field is not of its type")
        return session

    def status(self, now: float) -> SessionStatus:
        """Return the status for people; `now` is in seconds since 1970."""
        measured = asdict(self.measured) if self.measured else {}
        measured.pop("end", None)
        return SessionStatus(
            client=self.client,
            id=self.id,
            model=self.model,
            turns=self.turns,
            text_tokens=self.tokens,
            continuable=bool(self.said),
            pinned=self.pinned,
            active=self.active > 0,
            age_s=round(max(0.0, now - self.created_at), 1),
            idle_s=round(max(0.0, now - self.used_at), 1),
            **measured,
        )


def _is_hex(text: Any) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except (TypeError, ValueError):
        return False


def _is_message(turn: Any) -> bool:
    try:
        return bool(Message.model_validate(turn).turn == turn)
    except ValidationError:
        return False
