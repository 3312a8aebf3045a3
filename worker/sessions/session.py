"""One conversation of a client, over all its turns."""

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from shared.ids import ClientName, ModelId, SessionKey
from shared.messages.control import SessionStatus
from shared.messages.request import Message, Turn, turn_bytes
from worker.link.facts import SequenceMeasured

_KEPT = ("client", "id", "model", "turns", "tokens", "engine", "end", "created_at", "used_at")


@dataclass(slots=True, eq=False)
class Session:
    """
    Attributes:
        turns: how many were answered, as far as this worker knows.
        said: all messages, with the answers: nothing where turns never come alone, None where
            not all is known.
        tokens: of its text, as far as that was kept once.
        engine, end: which engine keeps its text, and the block with which that ends.
        created_at, used_at: in seconds since 1970.
        active: requests that run.
        measured: what is kept of its text now.
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
    measured: SequenceMeasured | None = None

    @property
    def key(self) -> SessionKey:
        return self.client, self.id

    @property
    def said_bytes(self) -> int:
        """About what its messages take."""
        return sum(turn_bytes(turn) + 100 for turn in self.said or [])

    @property
    def answers(self) -> int:
        """How many stand among its messages, those of other workers too."""
        return sum(message["role"] == "assistant" for message in self.said or [])

    @property
    def own_bytes(self) -> int:
        return self.measured.own_bytes if self.measured else 0

    def to_json(self) -> bytes:
        """What is kept of it over restarts."""
        kept = {name: getattr(self, name) for name in (*_KEPT, "pinned", "said")}
        return orjson.dumps(kept)

    @classmethod
    def from_json(cls, data: bytes) -> "Session":
        """Raises ValueError for what `to_json` did not write."""
        try:
            session = cls(**orjson.loads(data))
        except TypeError as error:
            raise ValueError(str(error)) from None
        texts = (session.client, session.id, session.model)
        numbers = (session.created_at, session.used_at, session.turns, session.tokens)
        if not (
            all(isinstance(each, str) for each in texts)
            and all(isinstance(each, int | float) for each in (*numbers, session.engine))
            and (session.end is None or _is_hex(session.end))
            and (session.said is None or all(map(_is_message, session.said)))
        ):
            raise ValueError("a field is not of its type")
        return session

    def status(self, now: float) -> SessionStatus:
        """For people. Args: now: in seconds since 1970."""
        figures = asdict(self.measured) if self.measured else {}
        figures.pop("end", None)
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
            **figures,
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
