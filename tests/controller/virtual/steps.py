"""What happens to a cluster, one thing after another."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.controller.virtual.engine import EnginePace, Word
from tests.controller.virtual.worker import Mood

CONTROLLERS = ("c-1", "c-2")
WORKERS = ("w-1", "w-2")
REQUESTS = 10
"""So many different ones there are; see `cluster.BODIES`."""


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A client publishes a request, maybe not for the first time, maybe where it listens already;
    `via` is the controller that gets it."""

    request: int
    via: str
    same_inbox: bool = False


@dataclass(frozen=True, slots=True)
class CancelIt:
    request: int


@dataclass(frozen=True, slots=True)
class SlowFrom:
    """From now on what somebody sends takes so long, to all others or to one."""

    name: str
    seconds: float
    to: str = ""


@dataclass(frozen=True, slots=True)
class SlowTo:
    """From now on what somebody is sent takes so long."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """From now on it takes so long to publish, as with a full buffer."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Say:
    """What workers say to who comes, all of them or one."""

    mood: Mood
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How workers go on with what they have, all of them or one."""

    pace: EnginePace
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Generate:
    """What the engine says to the request that it has for the longest."""

    worker: str
    what: Word


@dataclass(frozen=True, slots=True)
class CrashEngine:
    worker: str


@dataclass(frozen=True, slots=True)
class Kill:
    worker: str


@dataclass(frozen=True, slots=True)
class Restart:
    """After it was killed, if it was not. It takes requests at once and is heard of later."""

    worker: str
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Drain:
    worker: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A controller shuts down in good order."""

    controller: str


@dataclass(frozen=True, slots=True)
class Cut:
    """It loses its connection to NATS, and gets it back some time later."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class KillController:
    """Without a word."""

    controller: str


@dataclass(frozen=True, slots=True)
class StartController:
    """Kill it if it is alive, and start it again."""

    controller: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A process stands still for a while, as after SIGSTOP."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class KillClient:
    """Whoever asked for a request last listens no more."""

    request: int


Step = (
    Wait | Ask | CancelIt | SlowFrom | SlowTo | Crowd | Say | Pace | Generate | CrashEngine | Kill
    | Restart | Drain | Leave | Cut | KillController | StartController | Stop | KillClient
)  # fmt: skip

MOODS: tuple[Mood, ...] = (
    "willing", "short of memory", "without its model", "without an engine"
)  # fmt: skip
_WORKERS = st.sampled_from(WORKERS)
_SOME_WORKERS = st.sampled_from(("", *WORKERS))
_CONTROLLERS = st.sampled_from(CONTROLLERS)
_PARTIES = st.sampled_from((*CONTROLLERS, *WORKERS))
_LATENCIES = st.sampled_from([0.001, 0.02, 0.4, 1.2, 1.8])
_REQUESTS = st.one_of(st.integers(0, 3), st.integers(0, REQUESTS - 1))
_NOTHING = st.none()
"""What a step becomes that has nothing to do with a failure."""
_WAITS = st.builds(Wait, st.sampled_from([0.0005, 0.002, 0.06, 0.3, 0.95, 1.1, 2.5]))
_ASKS = st.builds(Ask, _REQUESTS, _CONTROLLERS, st.booleans())
_DISTURBANCES = (
    st.builds(CancelIt, _REQUESTS),
    st.builds(SlowFrom, _PARTIES, _LATENCIES),
    st.builds(SlowFrom, _WORKERS, _LATENCIES, _CONTROLLERS),
    st.builds(SlowTo, _PARTIES, _LATENCIES),
    st.builds(Crowd, _CONTROLLERS, st.sampled_from([0.0005, 0.05])),
    st.builds(Say, st.sampled_from(MOODS), _SOME_WORKERS),
    st.builds(Pace, st.sampled_from(["idle", "at once"]), _SOME_WORKERS),
    st.builds(Generate, _WORKERS, st.sampled_from(["token", "end", "refusal"])),
    st.builds(CrashEngine, _WORKERS),
    st.builds(Kill, _WORKERS),
    st.builds(Restart, _WORKERS, st.sampled_from([0.0, 2.0, 5.0])),
    st.builds(Drain, _WORKERS),
)
CUT_WORKERS = st.builds(Cut, _WORKERS, st.sampled_from([0.1, 1.2, 4.0]))
LEAVES = st.builds(Leave, _CONTROLLERS)
PROCESS_FAULTS = (
    st.builds(KillController, _CONTROLLERS),
    st.builds(StartController, _CONTROLLERS),
    st.builds(Stop, _CONTROLLERS, st.sampled_from([0.3, 1.5, 4.0])),
    st.builds(Stop, _WORKERS, st.sampled_from([0.3, 1.5, 4.0])),
    st.builds(KillClient, _REQUESTS),
)


def scripts(*more: st.SearchStrategy[Step], length: int = 32) -> st.SearchStrategy[list[Step]]:
    """Steps: about as many asks and waits as disturbances."""
    step = st.one_of(_NOTHING, *[_WAITS] * 5, *[_ASKS] * 6, *_DISTURBANCES, *more)
    steps = st.lists(step, min_size=length, max_size=length)
    return steps.map(lambda drawn: [step for step in drawn if step is not None])
