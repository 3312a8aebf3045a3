"""Messages that wait for a handler, in turns between clients."""

from random import Random

from shared.bus.fair_queue import MAX_BYTES, MAX_CLIENT_BYTES, MAX_CLIENT_MESSAGES, FairQueue


def taken(queue: FairQueue[str]) -> list[str]:
    return list(iter(queue.take, None))


def test_one_client_is_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5):
        queue.add("ada", f"a{number}", 1)
    assert taken(queue) == ["a0", "a1", "a2", "a3", "a4"]


def test_a_late_client_waits_for_one_message_of_each_other_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(1000):
        queue.add("eve", f"e{number}", 1)
    queue.add("ada", "a0", 1)
    queue.add("bob", "b0", 1)
    queue.add("ada", "a1", 1)
    assert taken(queue)[:6] == ["e0", "a0", "b0", "e1", "a1", "e2"]


def test_messages_that_come_while_others_are_taken_change_no_order() -> None:
    random = Random(3)
    queue: FairQueue[tuple[str, int]] = FairQueue()
    sent, got = dict.fromkeys("abc", 0), {name: list[int]() for name in "abc"}
    for _ in range(5000):
        if random.random() < 0.55:
            name = random.choice("aaaabc")
            queue.add(name, (name, sent[name]), 1)
            sent[name] += 1
        elif (message := queue.take()) is not None:
            got[message[0]].append(message[1])
    while (message := queue.take()) is not None:
        got[message[0]].append(message[1])
    assert got == {name: list(range(count)) for name, count in sent.items()}


def test_a_client_has_a_share_and_others_still_have_space() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(MAX_CLIENT_MESSAGES):
        assert queue.add("eve", "e", 1)
    assert not queue.add("eve", "e", 1)
    assert queue.add("ada", "a", 1) and queue.add("", "of the cluster", 1)
    queue.take()
    assert queue.add("eve", "e", 1)


def test_bytes_are_bounded_for_a_client_and_for_all() -> None:
    queue: FairQueue[str] = FairQueue()
    assert queue.add("eve", "e", MAX_CLIENT_BYTES - 5)
    assert not queue.add("eve", "e", 6) and queue.add("eve", "e", 5)
    assert queue.add("", "of the cluster", MAX_BYTES - MAX_CLIENT_BYTES - 5)
    assert not queue.add("ada", "a", 6) and queue.add("ada", "a", 5)
    assert len(taken(queue)) == 4
    assert queue.add("ada", "a", MAX_CLIENT_BYTES)
