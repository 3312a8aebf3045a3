"""Scripts that once broke a promise, as short as they get, with what was wrong."""

from collections.abc import Sequence

from tests.simulation.script import (
    Ask,
    Cut,
    Drain,
    Generate,
    Kill,
    KillServer,
    Leave,
    Pace,
    SlowFrom,
    SlowTo,
    Start,
    Step,
    Stop,
    StopJetStream,
    Wait,
)

KEPT: dict[str, Sequence[Step]] = {
    "a leader that was cut off went on when a controller that had led meanwhile, and was started "
    "again since, reported that it does not lead": (
        Wait(1.1),
        Cut("c-1", 4.0),
        SlowFrom("w-1", 1.2, "c-1"),
        Wait(2.5),
        Start("c-2"),
        KillServer("s-3", 1.0),
        Kill("w-2"),
        Wait(2.5),
    ),
    "a part that another leader's worker had given up counted as a rejection of the whole list, "
    "and none went any more": (
        Pace("idle", "w-1"),
        Ask(2),
        Ask(6, plainly=True),
        Wait(0.95),
        Start("c-1"),
        Wait(2.5),
        Drain("w-2"),
    ),
    "a later attempt was lost together with its worker and the leader; an earlier one had the "
    "answer, and its client ignored it": (
        Ask(2, same_inbox=True),
        SlowTo("w-2", 1.2),
        Wait(2.5),
        Start("w-1", 2.0),
        Kill("c-1"),
    ),
    "the worker dropped the end of an answer that it had not sent yet, as the leader knew that it "
    "had ended": (
        KillServer("s-1", 0.3),
        Stop("c-2", 4.0),
        SlowFrom("w-1", 0.4, "c-1"),
        Wait(2.5),
        Ask(2, same_inbox=True),
        Ask(1, plainly=True, same_inbox=True),
        Wait(0.3),
        KillServer("s-2", 0.3),
        StopJetStream(5.0, "lost"),
    ),
    "a controller that stood still while another one led, and JetStream lost the record, led in "
    "the same term": (
        Stop("c-1", 4.0),
        SlowFrom("c-2", 1.2),
        Wait(1.1),
        StopJetStream(1.2, "lost"),
        KillServer("s-3", 1.0),
    ),
    "the leader restarted, and began a turn before it had heard of the worker that had the one "
    "before": (
        Pace("idle", "w-2"),
        Ask(2),
        Wait(2.0),
        Start("c-1"),
        Ask(3),
        Wait(0.95),
    ),
    "a worker was gone before the term began, and a turn of it with the last leader": (
        Pace("idle", "w-1"),
        Ask(2),
        Wait(0.3),
        Ask(3),
        Cut("w-2", 1.2),
        Wait(1.5),
        Kill("c-2"),
        Kill("w-1"),
        Kill("c-1"),
    ),
    "a request that was resumed was adopted, and who asked for it later never got the beginning": (
        Ask(7),
        Wait(0.3),
        Start("c-1"),
        Cut("client", 0.1),
        Wait(2.5),
        Ask(7, same_inbox=True),
        Start("c-1", 5.0),
    ),
    "a request that was resumed had ended, and a new leader attached who lacks its tokens": (
        Ask(0, same_inbox=True),
        Wait(0.3),
        Kill("w-2"),
        Wait(0.3),
        Kill("c-1"),
        Wait(3.0),
        Kill("c-2"),
        Ask(0, same_inbox=True),
    ),
    "a later attempt ended earlier than what was received, and its client waited for more": (
        Ask(6),
        Wait(0.3),
        Pace("idle", "w-2"),
        Drain("w-1"),
        Pace("at once", "w-1"),
        Leave("c-1"),
        Generate("w-2", "end"),
        Wait(0.3),
        Generate("w-2", "end"),
    ),
    "a turn that was lost after its first tokens was published again behind the next one": (
        Ask(2),
        Wait(0.3),
        Start("c-1"),
        Start("w-2", 2.0),
        Wait(2.5),
        Kill("c-1"),
        Ask(3),
    ),
}
