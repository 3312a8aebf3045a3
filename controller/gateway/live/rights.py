"""The rights of callers: to see the cluster's state and to give orders. Pure functions over the
headers of a request.

With API keys, a key decides. Without, whoever reaches the port could look, so that only programs on
this machine may: not those of other machines, not those behind a proxy here, and no web page of
another origin, also not by DNS rebinding (the Host header must name this machine).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from controller.gateway.api_keys import ApiKey
from shared.errors import ClusterError
from shared.loopback import is_surely_loopback

Rights = Literal["admin", "own", "read"]
"""Sees and does all; sees and cancels the requests of its own client; sees all."""

_FORWARDED = (
    "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
)  # fmt: skip
VIEWS = ("overview", "machines", "models", "requests", "sessions", "rollout", "log")
_OWN_VIEWS = ("requests",)


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Attributes:
        key: of the caller; `ANONYMOUS` where no keys are required.
    """

    key: ApiKey
    rights: Rights

    @property
    def views(self) -> tuple[str, ...]:
        """The views that the caller may see."""
        return _OWN_VIEWS if self.rights == "own" else VIEWS


def caller_of(
    key: ApiKey, headers: Mapping[str, str], peer: str | None, *, requires_key: bool
) -> Caller:
    """Return who the caller is.

    Args:
        headers: by lower-case name.
        peer: the address of the connection; None if unknown.

    Raises:
        ClusterError: `not_allowed`: the caller may see nothing.
    """
    check_origin(headers)
    if requires_key:
        return Caller(key, "admin" if key.admin else "own")
    check_on_this_machine(headers, peer)
    if not is_surely_loopback(_host_name(headers.get("host", ""))):
        raise _refused("the Host header does not name this machine")
    return Caller(key, "read")


def check_on_this_machine(headers: Mapping[str, str], peer: str | None) -> None:
    """Refuse callers without a key that are not programs on the gateway's machine.

    Args:
        headers, peer: as for `caller_of`.

    Raises:
        ClusterError: `not_allowed`.
    """
    if peer is None or not is_surely_loopback(peer):
        raise _refused(
            "only programs on the gateway's machine may see the cluster without API keys"
        )
    if any(name in headers for name in _FORWARDED):
        raise _refused("behind a proxy the gateway shows the cluster only to callers with API keys")


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse what a web page of another origin sends.

    Raises:
        ClusterError: `not_allowed`.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise _refused("pages of other origins may not see the cluster")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise _refused("pages of other sites may not see the cluster")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refused(why: str) -> ClusterError:
    return ClusterError(f"{why}; see `gateway keys --help`", code="not_allowed")
