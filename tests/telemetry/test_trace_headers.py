"""W3C Trace Context, as clients send it."""

import pytest

from shared.telemetry.trace_headers import remote_span, trace_headers

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_header_names_trace_span_and_whether_it_is_sampled() -> None:
    assert remote_span({"traceparent": PARENT}) == (TRACE, SPAN, True, "")
    assert remote_span({"Traceparent": PARENT}) == (TRACE, SPAN, True, "")
    assert remote_span({"traceparent": f"00-{TRACE}-{SPAN}-00"}) == (TRACE, SPAN, False, "")
    assert remote_span({"traceparent": f"00-{TRACE}-{SPAN}-03"}) == (TRACE, SPAN, True, "")


def test_a_later_version_may_have_more_fields() -> None:
    assert remote_span({"traceparent": f"cc-{TRACE}-{SPAN}-01-what-comes"}) is not None


def test_what_is_sent_on_can_be_read_again() -> None:
    sent = trace_headers(TRACE, SPAN, sampled=False, tracestate="a=1")
    assert remote_span(sent) == (TRACE, SPAN, False, "a=1")
    assert "tracestate" not in trace_headers(TRACE, SPAN, sampled=True)


@pytest.mark.parametrize(
    "value",
    [
        "", "00", PARENT + "-x", PARENT.upper(), PARENT[:-1], "ff" + PARENT[2:], f"{PARENT}\n00",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", PARENT.replace("4", "g"),
        "cc" + PARENT[2:] + "-" + "x" * 1000, "\N{ARABIC-INDIC DIGIT ONE}" + PARENT[1:],
    ],
)  # fmt: skip
def test_a_malformed_header_is_none(value: str) -> None:
    assert remote_span({"traceparent": value}) is None
    assert remote_span({"tracestate": "a=1"}) is None
    assert remote_span({}) is None and remote_span(None) is None


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("a=1", "a=1"), (" a=1 ,, b@c=x y ", "a=1,b@c=x y"), ("a=1,a=2", ""), ("a", ""),
        ("A=1", ""), ("a=" + "x" * 300, ""), (",".join(f"k{n}=1" for n in range(33)), ""),
        (",".join(f"k{n}={'x' * 30}" for n in range(20)), ""), ("a=\x01", ""), ("a=ü", ""),
        ("a=" + "x" * 256, "a=" + "x" * 256),
    ],
)  # fmt: skip
def test_a_malformed_or_long_tracestate_is_dropped(value: str, kept: str) -> None:
    span = remote_span({"traceparent": PARENT, "tracestate": value})
    assert span is not None and span.tracestate == kept
