"""The judge of the fuzzer finds what it shall find."""

from tests.fuzz.judge import Burst, Limits, growth, leaks, memory_over_time, violations
from tests.fuzz.target import ProcessState

_MB = 2**20
LIMITS = Limits({"NATS": 0.1, "HTTP": 2.0})


def state(name: str = "controller-1", port: int | None = 4000, mb: int = 100) -> ProcessState:
    return ProcessState(name, port, mb * _MB)


def burst(
    number: int = 1,
    *,
    states: dict[int, ProcessState] | None = None,
    served_s: dict[str, float | None] | None = None,
    errors: tuple[str, ...] = (),
) -> Burst:
    served = served_s or {"NATS": 0.1, "HTTP": 2.0}
    return Burst(number, "nats", float(number), served, errors, states or {1: state()})


def test_a_quiet_attack_breaks_no_promise() -> None:
    assert violations({1: state()}, [burst(1), burst(2)], LIMITS) == []


def test_a_process_that_ended_is_named_once() -> None:
    before = {1: state(), 2: state("worker-1")}
    bursts = [burst(1, states=before), burst(2), burst(3)]
    assert violations(before, bursts, LIMITS) == ["burst 2 (nats): worker-1 (pid 2) ended"]


def test_another_port_is_a_lost_connection() -> None:
    found = violations({1: state()}, [burst(states={1: state(port=4001)})], LIMITS)
    assert found == ["burst 1 (nats): controller-1 (pid 1) lost its connection to NATS"]


def test_a_request_may_take_three_times_as_long_or_a_second_more() -> None:
    assert violations({1: state()}, [burst(served_s={"NATS": 1.09, "HTTP": 5.9})], LIMITS) == []
    slow = violations({1: state()}, [burst(served_s={"NATS": 1.11, "HTTP": 6.1})], LIMITS)
    assert [line.split(" took ")[0] for line in slow] == [
        "burst 1 (nats): the other client's request over NATS",
        "burst 1 (nats): the other client's request over HTTP",
    ]


def test_an_error_of_the_other_client_is_a_violation() -> None:
    assert violations({1: state()}, [burst(errors=("not served",))], LIMITS) == [
        "burst 1 (nats): not served"
    ]


def test_growing_memory_is_a_leak_whatever_single_samples_say() -> None:
    flat = [burst(n, states={1: state(mb=100 + n % 7)}) for n in range(100)]
    assert leaks(growth(flat, within_s=50)) == []
    rising = [burst(n, states={1: state(mb=100 + n // 5)}) for n in range(100)]
    assert [line.split(" grew")[0] for line in leaks(growth(rising, within_s=50))] == [
        "controller-1 (1)"
    ]


def test_memory_is_shown_over_the_whole_campaign() -> None:
    rising = [burst(n, states={1: state(mb=100 + n // 5)}) for n in range(100)]
    assert memory_over_time(rising, parts=4) == {"controller-1 (1)": [102, 107, 112, 117]}
    assert memory_over_time([], parts=4) == {}
