"""Keeps web pages of others out of a gateway without API keys.

Where keys are required, a page that has none gets nothing. Without keys a browser on this machine,
or in this network, would carry the requests of any page that it shows: those that need no
preflight, and with DNS rebinding, which gives the page's own name this machine's address, all of
them and their answers. Programs that are no browsers send none of the headers that are checked but
`Host`.
"""

import ipaddress
import socket
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from shared.errors import ClusterError
from shared.settings.gateway import GatewaySettings

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")
"""Names below these are never in the public DNS, where others could register them."""
_SAFE_METHODS = ("GET", "HEAD")
_KNOWN_HOSTS = 256


class PageGuard:
    """Checks the requests to a gateway without keys.

    Allowed as `Host` are addresses, names without a dot, names of the local network, this machine's
    own name, `gateway.host` and `gateway.hosts`; as `Origin` the gateway itself, those of
    `gateway.cors_origins`, and schemes of programs and extensions, which no page can have.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        names = (settings.host, *settings.hosts, socket.gethostname())
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._origins = frozenset(settings.cors_origins)
        self._knows = lru_cache(_KNOWN_HOSTS)(self._is_own)

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """
        Args:
            headers: by lower-case name.

        Raises:
            ClusterError: `not_allowed`.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._knows(host):
            raise _refused(
                f"the Host header names {host[:100]!r}, which is no known name of this gateway: "
                "add it to gateway.hosts"
            )
        if origin is not None:
            if not self._is_allowed(origin, host):
                raise _refused(
                    f"pages of {origin[:100]!r} may not call this gateway: add it to "
                    "gateway.cors_origins"
                )
        elif method not in _SAFE_METHODS and _is_cross_site(headers):
            raise _refused("pages of other sites may not call this gateway")

    def _is_allowed(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, separator, rest = origin.partition("://")
        if scheme in ("http", "https"):
            return bool(host) and rest == host
        return bool(scheme and separator)

    def _is_own(self, host: str) -> bool:
        """Whether no page of others can have this Host header. Browsers always send one."""
        if not host:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return bool(name) and (
            "." not in name
            or name.rstrip(".").endswith(_LOCAL_SUFFIXES)
            or name.rstrip(".") in self._names
            or _is_address(name)
        )


def _is_cross_site(headers: Mapping[str, str]) -> bool:
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(why: str) -> ClusterError:
    return ClusterError(f"{why}, or require API keys (`gateway keys --help`)", code="not_allowed")
