"""What happens to a cluster, one thing after another: the same for the same seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.engine import EnginePace, Word
from tests.simulation.network import SERVERS
from tests.simulation.worker import Mood

CONTROLLERS = ("c-1", "c-2")
WORKERS = ("w-1", "w-2")
REQUESTS = 10
"""So many different ones there are; see `cluster.BODIES`."""


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A client publishes a request, maybe not for the first time: with the client library, or
    plainly, maybe where it listens already."""

    request: int
    plainly: bool = False
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
class Drain:
    worker: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A controller shuts down in good order."""

    controller: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A controller or worker ends without a word."""

    name: str


@dataclass(frozen=True, slots=True)
class Start:
    """After it was killed, if it was not. A worker may be heard of only later."""

    name: str
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A process stands still for a while, as after SIGSTOP: also the clients'."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """It loses its connection to NATS, and gets it back some time later."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class KillServer:
    """All who are connected to it connect to another one some time later."""

    server: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StopJetStream:
    """It does not answer for a while; or does what it is told without a word, or has lost all."""

    seconds: float
    how: str


@dataclass(frozen=True, slots=True)
class Forge:
    """A worker or controller reports a term that there never was."""

    name: str
    term: int
    leads: bool = False


@dataclass(frozen=True, slots=True)
class Lie:
    """From now on a worker refuses all orders and dispatches, as if another leader had claimed it
    in that term."""

    worker: str
    term: int


@dataclass(frozen=True, slots=True)
class ForgeRecord:
    """Somebody overwrites the leader's record."""

    term: int


@dataclass(frozen=True, slots=True)
class KillClient:
    """Who asked for a request last listens no more, without a word."""

    request: int


Step = (
    Wait | Ask | CancelIt | SlowFrom | SlowTo | Crowd | Say | Pace | Generate | CrashEngine | Drain
    | Leave | Kill | Start | Stop | Cut | KillServer | StopJetStream | KillClient
    | Forge | Lie | ForgeRecord
)  # fmt: skip

MOODS: tuple[Mood, ...] = (
    "willing", "short of memory", "without its model", "without an engine"
)  # fmt: skip
_WAITS_S = (0.0005, 0.002, 0.06, 0.3, 0.95, 1.1, 2.5)
_LATENCIES_S = (0.001, 0.02, 0.4, 1.2, 1.8)
_AWAY_S = (0.1, 0.3, 1.2, 1.5, 4.0)
_SHORTEST, _LONGEST = 4, 32
_TERMS = (1, 2, 3, 50, 2**20, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 2**62, 2**63 - 1, 2**63)


def random_script(seed: object) -> list[Step]:
    """Most have kills, stops and cuts of every role; some have lies about terms, and some are about
    turns only."""
    draw = random.Random(str(seed))
    if random.Random(f"{seed}/turns").random() < _TURNS_SHARE:
        return _turns_script(draw)

    def one(*values: object) -> Callable[[], object]:
        return lambda: draw.choice(values)

    worker, controller = one(*WORKERS), one(*CONTROLLERS)
    party = one(*WORKERS, *CONTROLLERS)
    everyone = one(*WORKERS, *CONTROLLERS, "client")
    some, latency, away_s = one("", *WORKERS), one(*_LATENCIES_S), one(*_AWAY_S)
    request = one(*range(4), *range(REQUESTS))
    kinds: list[tuple[Callable[..., Step], tuple[Callable[[], object], ...]]] = [
        *[(Wait, (one(*_WAITS_S),))] * 6,
        *[(Ask, (request, one(False, False, True), one(False, True)))] * 7,
        (CancelIt, (request,)),
        (SlowFrom, (party, latency)),
        (SlowFrom, (worker, latency, controller)),
        (SlowTo, (party, latency)),
        (Crowd, (controller, one(0.0005, 0.05))),
        (Say, (one(*MOODS), some)),
        (Pace, (one("idle", "at once"), some)),
        (Generate, (worker, one("token", "end", "refusal"))),
        (CrashEngine, (worker,)),
        (Drain, (worker,)),
        (Leave, (controller,)),
    ]
    if draw.random() < _CRUEL_SHARE:
        kinds += [
            (Kill, (party,)),
            (Start, (party, one(0.0, 0.0, 2.0, 5.0))),
            (Start, (controller, one(0.0))),
            (Stop, (everyone, away_s)),
            (Stop, (controller, away_s)),
            (Cut, (everyone, away_s)),
            (KillServer, (one(*SERVERS), one(0.3, 1.0))),
            (StopJetStream, (one(1.2, 5.0), one("silent", "silent", "mute", "lost"))),
            (KillClient, (request,)),
        ]
    if random.Random(f"{seed}/lies").random() < _LIES_SHARE:
        term = one(*_TERMS)
        kinds += [
            *[(Forge, (party, term, one(False, True)))] * 2,
            (Lie, (worker, term)),
            (ForgeRecord, (term,)),
            (StopJetStream, (one(1.2, 5.0), one("lost"))),
            (Start, (controller, one(0.0))),
            (Leave, (controller,)),
        ]
    steps = []
    for _ in range(draw.randint(_SHORTEST, _LONGEST)):
        kind, arguments = draw.choice(kinds)
        steps.append(kind(*(argument() for argument in arguments)))
    return steps


def _turns_script(draw: random.Random) -> list[Step]:
    """Two turns of one session, while the leader and workers are lost."""
    steps: list[Step] = [Pace("idle", draw.choice(WORKERS))] if draw.random() < 0.3 else []
    first, second = Ask(2), Ask(3)
    steps += [first, Wait(draw.choice(_WAITS_S))]
    worker, away_s = draw.choice(WORKERS), draw.choice(_AWAY_S)
    losses: list[Step] = [
        *(Kill(name) for name in (*WORKERS, *CONTROLLERS)),
        *(Start(name, draw.choice((0.0, 2.0))) for name in WORKERS),
        *(Start(name) for name in CONTROLLERS),
        *(Cut(name, away_s) for name in WORKERS),
        *(CrashEngine(name) for name in WORKERS),
        *(Generate(name, "token") for name in WORKERS),
        Drain(worker),
    ]
    for _ in range(draw.randint(2, 8)):
        steps += [draw.choice(losses), Wait(draw.choice(_WAITS_S))]
    steps.insert(draw.randint(steps.index(first) + 1, len(steps)), second)
    return steps


_CRUEL_SHARE, _TURNS_SHARE, _LIES_SHARE = 0.7, 0.1, 0.3
