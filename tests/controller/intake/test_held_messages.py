"""What is held for a leader is bounded, and the client that holds most loses first."""

import pytest

from controller.intake import held_messages
from controller.intake.held_messages import HeldMessage, HeldMessages
from shared.bus import IncomingMessage


def held(client: str, payload: bytes = b"x", at: float = 0.0) -> HeldMessage[str]:
    message = IncomingMessage(f"mlx.infer.{client}.chat", "_INBOX.x", payload)
    return HeldMessage(at, "handler", message, client, named=payload == b"named")


def popped(messages: HeldMessages[str]) -> list[tuple[str, bytes]]:
    return [(each.client, each.message.payload) for each in _all(messages)]


def _all(messages: HeldMessages[str]) -> list[HeldMessage[str]]:
    return [messages.pop() for _ in range(len(messages))]


def test_messages_come_out_in_the_order_of_arrival() -> None:
    messages = HeldMessages[str]()
    for client, payload in (("ada", b"1"), ("bob", b"2"), ("ada", b"3")):
        messages.add(held(client, payload))
    assert popped(messages) == [("ada", b"1"), ("bob", b"2"), ("ada", b"3")]
    assert not messages


def test_above_the_bytes_the_client_with_most_loses_its_oldest() -> None:
    messages = HeldMessages[str](max_bytes=100_000)
    messages.add(held("ada", b"small"))
    for number in range(10):
        messages.add(held("eve", b"%d" % number * 30_000))
    left = popped(messages)
    assert left[0] == ("ada", b"small")
    assert [payload[:1] for _, payload in left[1:]] == [b"7", b"8", b"9"]


def test_above_the_number_the_client_with_most_loses_its_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_messages, "MAX_HELD", 3)
    messages = HeldMessages[str]()
    for client, payload in (("ada", b"1"), ("eve", b"2"), ("eve", b"3"), ("eve", b"4")):
        messages.add(held(client, payload))
    assert popped(messages) == [("ada", b"1"), ("eve", b"3"), ("eve", b"4")]


def test_many_small_ones_do_not_displace_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_messages, "MAX_HELD", 3)
    messages = HeldMessages[str]()
    messages.add(held("ada", b"x" * 1000))
    for _ in range(10):
        messages.add(held("eve", b"y"))
    assert [client for client, _ in popped(messages)] == ["ada", "eve", "eve"]


def test_old_ones_and_those_without_an_id_are_dropped_on_demand() -> None:
    messages = HeldMessages[str]()
    for at, payload in ((1.0, b"named"), (2.0, b"x"), (3.0, b"named"), (4.0, b"y")):
        messages.add(held("ada", payload, at))
    messages.drop_older_than(2.0)
    assert [each.held_at for each in messages] == [2.0, 3.0, 4.0]
    messages.drop(lambda each: not each.named)
    assert popped(messages) == [("ada", b"named")]
