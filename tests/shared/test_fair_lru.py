"""What is remembered for clients."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from shared.fair_lru import FairLru
from shared.ids import ClientName, SessionKey

_ADA, _EVE = ClientName("ada"), ClientName("eve")


def _key(client: ClientName, number: int) -> SessionKey:
    return client, f"s-{number}"


def test_a_name_has_the_value_that_it_was_given_last() -> None:
    homes: FairLru[str] = FairLru(10)
    assert homes.get(_key(_ADA, 1)) is None
    assert homes.set(_key(_ADA, 1), "a") is None
    assert homes.set(_key(_ADA, 1), "b") == "a"
    assert (homes.get(_key(_ADA, 1)), homes.get(_key(_EVE, 1)), len(homes)) == ("b", None, 1)


def test_a_client_with_many_values_has_none_of_others_forgotten() -> None:
    homes: FairLru[int] = FairLru(10)
    for number in range(3):
        homes.set(_key(_ADA, number), number)
    for number in range(1000):
        homes.set(_key(_EVE, number), number)
    assert [homes.get(_key(_ADA, number)) for number in range(3)] == [0, 1, 2]
    assert [homes.get(_key(_EVE, number)) for number in (992, 993, 999)] == [None, 993, 999]
    assert len(homes) == 10


@given(st.lists(st.integers(0, 6)))
def test_of_one_client_those_used_last_are_remembered(numbers: list[int]) -> None:
    homes: FairLru[int] = FairLru(3)
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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=80), st.integers(1, 12))
def test_of_many_clients_the_one_with_most_loses_its_oldest_each_time(
    keys: list[tuple[int, int]], most: int
) -> None:
    lru: FairLru[int] = FairLru(most)
    expected: dict[str, OrderedDict[str, int]] = {}
    for number, (client, name) in enumerate(keys):
        lru.set((ClientName(str(client)), str(name)), number)
        of_client = expected.setdefault(str(client), OrderedDict())
        of_client.pop(str(name), None)
        of_client[str(name)] = number
        if sum(map(len, expected.values())) > most:
            largest = max(map(len, expected.values()))
            kept = {
                key: lru.get((ClientName(key), next(iter(each)))) for key, each in expected.items()
            }
            (loser,) = [key for key, value in kept.items() if value is None]
            assert len(expected[loser]) == largest
            expected[loser].popitem(last=False)
            if not expected[loser]:
                del expected[loser]
        assert sorted(lru.values()) == sorted(
            value for each in expected.values() for value in each.values()
        )
        assert len(lru) == sum(map(len, expected.values())) <= most
