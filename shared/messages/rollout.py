"""Roll-outs of cluster.yaml: orders of operators, and the state in JetStream."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from shared.codec import WireMessage, WireMessagePart
from shared.ids import ControllerId, WorkerId
from shared.messages.base import Count
from shared.messages.control import SettingChange
from shared.settings.controller import RolloutSettings as RolloutSettings

MOST_TEXT_BYTES = 1024 * 1024
MAX_STORED = 100
"""Maximum number of versions, and of ended roll-outs, that are stored."""

Phase = Literal["measuring", "applying", "baking", "rolling_back", "done", "rolled_back"]
"""In order: the baseline is measured; the workers of a step apply the version; they are watched;
all workers return to the previous version; all have the version; all have the previous version."""

ENDED: tuple[Phase, ...] = ("done", "rolled_back")


def _whole(settings: RolloutSettings) -> dict[str, Any]:
    return settings.model_dump()


Whole = Annotated[RolloutSettings, PlainSerializer(_whole)]
"""Serialized with the fields that are None, where None has a meaning."""


class SpeedAtLoad(WireMessagePart):
    """The speed of a worker at a load level.

    Attributes:
        level: the bit length of its number of requests: 1, 2 to 3, 4 to 7 and so on are one level.
    """

    level: Count
    tokens_per_s: float


class Baseline(WireMessagePart):
    """Measurements before the roll-out.

    Attributes:
        error_share: the share of ended requests that failed or were rejected.
        speeds: mean speed of each worker at each level at which it was seen.
    """

    error_share: float = 0.0
    speeds: dict[WorkerId, list[SpeedAtLoad]] = {}


class Rollout(WireMessagePart):
    """The roll-out of one version to all workers.

    Attributes:
        version: the new version.
        before: the previous version, to which a roll-back returns.
        steps: the workers of each step; workers in no step get the version at the end.
        step: the index of the current step.
        paused: no step starts; a failed gate still rolls back.
        since: start of the phase; all times here are in seconds since 1970.
        reason: why it is rolled back.
        settings: the parameters of this roll-out.
    """

    version: Count
    before: Count
    phase: Phase
    steps: list[list[WorkerId]] = []
    step: Count = 0
    paused: bool = False
    began_at: float
    since: float
    by: str = ""
    note: str = ""
    reason: str | None = None
    baseline: Baseline | None = None
    settings: Whole

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def reached(self) -> list[WorkerId]:
        """The workers that have the version, or get it now."""
        if self.phase in ("measuring", "rolling_back", "rolled_back"):
            return []
        return self.given

    @property
    def given(self) -> list[WorkerId]:
        """The workers of all steps up to the current one."""
        return [worker for step in self.steps[: self.step + 1] for worker in step]


class RolloutState(WireMessage):
    """The state of roll-outs, stored in JetStream.

    Attributes:
        stable: the version of all workers that are not part of a roll-out; 0 for their own files.
        last_version: the highest version.
        rollout: the current roll-out, or the last one.
        history: earlier roll-outs, the newest first.
    """

    stable: Count = 0
    last_version: Count = 0
    rollout: Rollout | None = None
    history: list[Rollout] = []


class Version(WireMessage):
    """One version of cluster.yaml, stored in JetStream."""

    version: Count
    text: str
    created_at: float
    by: str = ""
    note: str = ""


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApplyRollout(_Order):
    """Creates a version from the text, and starts its roll-out."""

    text: Annotated[str, Field(max_length=MOST_TEXT_BYTES)]
    by: Annotated[str, Field(max_length=256)] = ""
    note: Annotated[str, Field(max_length=1000)] = ""
    canaries: Annotated[list[WorkerId], Field(max_length=1000)] = []
    settings: Whole | None = None


class PlanRollout(_Order):
    """Queries what a text would change in the leader."""

    text: Annotated[str, Field(max_length=MOST_TEXT_BYTES)]


class ShowRollout(_Order):
    """Queries the state, and with `version` the text of a version."""

    version: Count | None = None


class PauseRollout(_Order):
    """Pauses the roll-out until it is resumed."""


class ResumeRollout(_Order):
    """Resumes the roll-out."""


class RollBack(_Order):
    """Ends the current roll-out, and returns all workers to the previous version. Without a current
    roll-out, returns to `version`, by default the version before the last one."""

    version: Count | None = None
    by: Annotated[str, Field(max_length=256)] = ""
    note: Annotated[str, Field(max_length=1000)] = ""


RolloutOrder = ApplyRollout | PlanRollout | ShowRollout | PauseRollout | ResumeRollout | RollBack

ROLLOUT_ORDERS: dict[str, type[RolloutOrder]] = {
    "apply": ApplyRollout,
    "plan": PlanRollout,
    "show": ShowRollout,
    "pause": PauseRollout,
    "resume": ResumeRollout,
    "rollback": RollBack,
}
"""The order that each verb of `mlx.rollout.<verb>` carries."""


class RolloutReply(WireMessage):
    """The leader's reply to an order."""

    controller: ControllerId
    ok: bool
    code: str | None = None
    message: str | None = None
    state: RolloutState | None = None
    version: Version | None = None
    effect: Literal["live", "models", "restart"] | None = None
    changes: list[SettingChange] = []
