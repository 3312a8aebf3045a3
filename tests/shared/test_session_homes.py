"""Where the sessions of clients were served last."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ClientName, SessionKey
from shared.session_homes import SessionHomes

_ADA, _EVE = ClientName("ada"), ClientName("eve")


def _key(client: ClientName, number: int) -> SessionKey:
    return client, f"s-{number}"


def test_a_session_has_the_home_that_it_was_given_last() -> None:
    homes: SessionHomes[str] = SessionHomes(10)
    assert homes.get(_key(_ADA, 1)) is None
    assert homes.set(_key(_ADA, 1), "a") is None
    assert homes.set(_key(_ADA, 1), "b") == "a"
    assert (homes.get(_key(_ADA, 1)), homes.get(_key(_EVE, 1)), len(homes)) == ("b", None, 1)


def test_a_client_with_many_sessions_has_none_of_others_forgotten() -> None:
    homes: SessionHomes[int] = SessionHomes(10)
    for number in range(3):
        homes.set(_key(_ADA, number), number)
    for number in range(1000):
        homes.set(_key(_EVE, number), number)
    assert [homes.get(_key(_ADA, number)) for number in range(3)] == [0, 1, 2]
    assert [homes.get(_key(_EVE, number)) for number in (992, 993, 999)] == [None, 993, 999]
    assert len(homes) == 10


@given(st.lists(st.integers(0, 6)))
def test_of_one_client_those_used_last_are_remembered(numbers: list[int]) -> None:
    homes: SessionHomes[int] = SessionHomes(3)
    expected: OrderedDict[int, int] = OrderedDict()
    for number in numbers:
        homes.set(_key(_ADA, number), number)
        expected[number] = number
        expected.move_to_end(number)
        while len(expected) > 3:
            expected.popitem(last=False)
    assert [homes.get(_key(_ADA, number)) for number in range(7)] == [
        expected.get(number) for number in range(7)
    ]
    assert len(homes) == len(expected)
