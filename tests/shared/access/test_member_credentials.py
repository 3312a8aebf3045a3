"""Tokens: what goes in comes out, and what is no token is told so without showing it."""

import base64
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.access.member_credentials import MemberCredentials, new_seed, public_key, read_token
from shared.errors import SettingsError

MEMBER = MemberCredentials(
    role="worker", name="mac-1", servers=["tls://10.0.0.1:4222"], seed=new_seed(), authority="PEM"
)


def packed(content: bytes) -> str:
    return "mlx1." + base64.urlsafe_b64encode(zlib.compress(content)).decode()


def test_a_token_says_all() -> None:
    assert read_token(MEMBER.token()) == MEMBER


def test_a_token_may_have_been_wrapped() -> None:
    token = MEMBER.token()
    assert read_token(f" {token[:40]}\n  {token[40:]}\n") == MEMBER


def test_a_seed_is_not_shown() -> None:
    assert MEMBER.seed not in repr(MEMBER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mlx2.abc",
        "mlx1.",
        "mlx1.!!!",
        MEMBER.token()[:-10],
        MEMBER.token()[:-1] + "é",
        packed(b"[]"),
        packed(b"{"),
        packed(b'{"version": 2}'),
        packed(MEMBER.model_dump_json().encode().replace(b'"worker"', b'"king"')),
        packed(MEMBER.model_dump_json().encode().replace(b"mac-1", b"mac.>")),
        packed(MEMBER.model_dump_json().encode().replace(b'"seed":"SU', b'"seed":"SX')),
        packed(MEMBER.model_dump_json().encode().replace(b"tls://10.0.0.1:4222", b"file:///x")),
        packed(b" " * 1_000_000),
    ],
    ids=itertools.count(),  # tokens differ from run to run
)
def test_what_is_no_token_is_refused_and_no_secret_shown(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_token(text)
    assert MEMBER.seed[3:] not in refused.value.message
    assert refused.value.__cause__ is None


@given(st.text(max_size=200))
def test_whatever_is_pasted_is_read_or_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        read_token("mlx1." + text)


def test_each_seed_is_another_and_has_one_public_key() -> None:
    seeds = {new_seed() for _ in range(20)}
    assert len(seeds) == len({public_key(seed) for seed in seeds}) == 20
    assert all(seed.startswith("SU") for seed in seeds)
    assert all(public_key(seed).startswith("U") for seed in seeds)


GOOD = new_seed()
MISTYPED = GOOD[:20] + ("A" if GOOD[20] != "A" else "B") + GOOD[21:]


@pytest.mark.parametrize(
    "text",
    [
        *("", "SU", "SUA" * 20, "U" * 56, "é" * 58, "SAAB" + "C" * 54),
        pytest.param(GOOD[:-1], id="too short"),
        pytest.param(MISTYPED, id="mistyped"),
    ],
)
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="no nkey seed"):
        public_key(text)
