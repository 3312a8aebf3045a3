"""Rolling cluster.yaml out: what people order, and what JetStream keeps of it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from shared.codec import InternalMessage, InternalPart
from shared.ids import ControllerId, WorkerId
from shared.messages.control import SettingChange
from shared.messages.events import Count
from shared.settings.controller import RolloutSettings as RolloutSettings

MOST_TEXT_BYTES = 1024 * 1024
MOST_KEPT = 100
"""So many versions, and so many roll-outs that ended, are kept."""

Phase = Literal["measuring", "applying", "baking", "rolling_back", "done", "rolled_back"]
"""What it was like before is measured; a step's workers go over to the version; they are watched;
all go back; all have it; all have again what was before."""

ENDED: tuple[Phase, ...] = ("done", "rolled_back")


def _whole(settings: RolloutSettings) -> dict[str, Any]:
    return settings.model_dump()


Whole = Annotated[RolloutSettings, PlainSerializer(_whole)]
"""Also what is null, which says something there."""


class Speed(InternalPart):
    """Of a worker while it had about so many requests.

    Attributes:
        level: how many bits their number has: 1, 2 to 3, 4 to 7 and so on are alike.
    """

    level: Count
    tokens_per_s: float


class Baseline(InternalPart):
    """What it was like before.

    Attributes:
        error_share: of requests that failed or were refused, of all that ended.
        speeds: of each worker, on average, at each level at which it was seen.
    """

    error_share: float = 0.0
    speeds: dict[WorkerId, list[Speed]] = {}


class Rollout(InternalPart):
    """One version on its way to all workers.

    Attributes:
        version: that they are to run.
        before: that they ran, and run again where it is rolled back.
        steps: the workers that get it together; who is in none gets it at the end.
        step: the one that is under way.
        paused: nothing goes on; what is wrong is still rolled back.
        since: when the phase began; as all times here in seconds since 1970.
        reason: why it is rolled back.
        settings: how it is to be done.
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
        """The workers that have the version, or are to get it now."""
        if self.phase in ("measuring", "rolling_back", "rolled_back"):
            return []
        return self.given

    @property
    def given(self) -> list[WorkerId]:
        """The workers that have had the version, as far as it came."""
        return [worker for step in self.steps[: self.step + 1] for worker in step]


class RolloutState(InternalMessage):
    """What is rolled out; JetStream keeps it.

    Attributes:
        stable: the version that all run who are not part of a roll-out; 0 for their own files.
        last_version: the highest there is.
        rollout: the one under way, or the last one.
        history: those that ended before, the newest first.
    """

    stable: Count = 0
    last_version: Count = 0
    rollout: Rollout | None = None
    history: list[Rollout] = []


class Version(InternalMessage):
    """One version of cluster.yaml; JetStream keeps it."""

    version: Count
    text: str
    created_at: float
    by: str = ""
    note: str = ""


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApplyRollout(_Order):
    """Makes the text a new version, and begins to roll it out."""

    text: Annotated[str, Field(max_length=MOST_TEXT_BYTES)]
    by: Annotated[str, Field(max_length=256)] = ""
    note: Annotated[str, Field(max_length=1000)] = ""
    canaries: Annotated[list[WorkerId], Field(max_length=1000)] = []
    settings: Whole | None = None


class PlanRollout(_Order):
    """Tells what a text would change in the controller that leads."""

    text: Annotated[str, Field(max_length=MOST_TEXT_BYTES)]


class ShowRollout(_Order):
    """Tells the state, and with `version` its text."""

    version: Count | None = None


class PauseRollout(_Order):
    """Nothing goes on until it is resumed."""


class ResumeRollout(_Order):
    """It goes on."""


class RollBack(_Order):
    """Ends the roll-out under way, all workers run again what they ran before it; where none is
    under way, back to `version`, by default the one before the last."""

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


class RolloutReply(InternalMessage):
    """What the leader says of an order."""

    controller: ControllerId
    ok: bool
    code: str | None = None
    message: str | None = None
    state: RolloutState | None = None
    version: Version | None = None
    effect: Literal["live", "models", "restart"] | None = None
    changes: list[SettingChange] = []
