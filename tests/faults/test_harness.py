"""The judge is judged: what breaks a rule is seen, and what keeps them all is not."""

import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.faults.answers import DONE, Piece, first_difference, recorded
from tests.faults.asks import mixed_asks
from tests.faults.difference import explain
from tests.faults.faults import processes_of, roles
from tests.faults.load import answers_alone
from tests.processes import ClusterProcess

FIRST = Piece(0, 0, [5, 6], "ab")
LAST = Piece(0, 2, [7], "c", "length")


def test_a_stream_that_keeps_the_rules_is_put_together() -> None:
    record = recorded(FIRST, LAST)
    assert record.broken == []
    answer = record.answer()
    assert (answer.token_ids, answer.text) == ({0: [5, 6, 7]}, {0: "abc"})
    assert answer.finish_reason == {0: "length"}


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((FIRST, FIRST, LAST), "twice"),
        ((FIRST, Piece(0, 3, [8], "d", "length")), "missing"),
        ((LAST,), "missing"),
        ((FIRST, LAST, Piece(0, 3, [8], "d")), "after its finish_reason"),
        ((FIRST,), "before a finish_reason"),
        ((FIRST, LAST, Piece(1, 0, [8], "d")), "before a finish_reason"),
    ],
)
def test_what_breaks_a_rule_is_seen(pieces: tuple[Piece, ...], said: str) -> None:
    assert said in recorded(*pieces).broken[0]


def test_what_comes_after_the_end_is_seen() -> None:
    record = recorded(FIRST, LAST)
    record.take(Piece(1, 0, [8], "d"))
    record.finish("worker_lost")
    assert len(record.broken) == 2
    assert record.end == DONE


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1)],
)
def test_the_first_difference_of_two_answers_is_found(
    one: list[int], other: list[int], place: int | None
) -> None:
    assert first_difference(one, other) == place


@pytest.mark.anyio
async def test_a_difference_is_told_with_its_tokens_and_its_gap(
    tiny_cluster: ClusterProcess,
) -> None:
    (ask,) = mixed_asks(1, shortest=8, longest=8)
    async with connect(as_client(tiny_cluster.url)) as cluster:
        first, second = await answers_alone(cluster, [ask, ask])
        assert await explain(cluster, ask, first, second) == []
        tokens = second.token_ids[0]
        tokens[5] = (tokens[5] + 1) % 256
        (said,) = await explain(cluster, ask, first, second)
    assert "token 5: alone [" in said
    assert "gap" in said or "likeliest" in said


def test_the_processes_of_a_cluster_are_told_apart(tiny_cluster: ClusterProcess) -> None:
    assert sorted(roles(tiny_cluster)) == [
        *("controller-1", "engine of worker-1", "engine of worker-2", "nats"),
        *("worker-1", "worker-2"),
    ]
    (server,) = processes_of(tiny_cluster, "nats")
    assert server.name() == "nats-server"
