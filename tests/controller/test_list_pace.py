"""Which prompt of a list goes when, by value."""

from controller.list_pace import MOST_SEEKING, ListPace
from shared.messages.stream import StreamError

FULL = StreamError.of("queue_full", "no room", retry_after_ms=2000)


def gone(pace: ListPace, now: float = 0.0, *, places: int, served: int = 0) -> list[int]:
    """The prompts that go, each found by a worker at once."""
    went: list[int] = []
    while (
        prompt := pace.next(now, served=served + len(went), seeking=0, places=places)
    ) is not None:
        went.append(prompt)
    return went


def test_prompts_go_in_order_as_many_as_there_are_places() -> None:
    pace = ListPace(5, 1)
    assert gone(pace, places=3) == [0, 1, 2]
    assert gone(pace, places=3, served=2) == [3]
    assert not pace.over
    assert gone(pace, places=3, served=2) == [4]
    assert pace.over and gone(pace, places=3) == []


def test_a_prompt_of_several_choices_takes_as_many_places() -> None:
    assert gone(ListPace(9, 4), places=9) == [0, 1]


def test_one_at_a_time_goes_wherever_places_are_few_or_unknown() -> None:
    assert gone(ListPace(3, 4), places=2) == [0]
    assert gone(ListPace(3, 1), places=0) == [0]


def test_only_so_many_look_for_a_worker_at_a_time() -> None:
    pace = ListPace(100, 1)
    for seeking in range(MOST_SEEKING):
        assert pace.next(0.0, served=seeking, seeking=seeking, places=1000) == seeking
    assert pace.next(0.0, served=MOST_SEEKING, seeking=MOST_SEEKING, places=1000) is None
    assert pace.next(0.0, served=MOST_SEEKING, seeking=0, places=1000) == MOST_SEEKING


def test_a_prompt_that_found_no_room_goes_again_in_its_order_when_there_may_be_some() -> None:
    pace = ListPace(4, 1)
    gone(pace, places=3)
    pace.put_back(1, FULL, 10.0)
    pace.put_back(0, FULL, 10.0)
    assert pace.refused is FULL
    assert gone(pace, 11.9, places=3) == []
    assert gone(pace, 12.0, places=3) == [0, 1, 3]


def test_without_a_word_on_when_to_come_again_a_second_is_waited() -> None:
    pace = ListPace(2, 1)
    gone(pace, places=1)
    pace.put_back(0, StreamError.of("queue_full", "no room"), 10.0)
    assert gone(pace, 10.9, places=1) == []
    assert gone(pace, 11.0, places=1) == [0]


def test_nobody_waits_long_for_a_guess() -> None:
    pace = ListPace(1, 1)
    gone(pace, places=1)
    pace.put_back(0, StreamError.of("queue_full", "no room", retry_after_ms=60_000), 10.0)
    assert gone(pace, 12.0, places=1) == [0]


def test_where_another_one_ended_there_is_room_at_once() -> None:
    pace = ListPace(4, 1)
    gone(pace, places=2)
    pace.put_back(1, FULL, 10.0)
    pace.freed()
    assert pace.refused is None
    assert gone(pace, 10.0, places=1) == [1]


def test_those_that_did_not_go_are_told_when_no_more_shall() -> None:
    pace = ListPace(4, 1)
    gone(pace, places=2)
    assert pace.give_up() == [2, 3]
    assert pace.over and gone(pace, places=9) == []
