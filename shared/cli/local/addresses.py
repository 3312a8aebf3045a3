"""Addresses of servers on this machine."""

import ipaddress

from shared.errors import SettingsError


def local_address(host: str, port: int) -> str:
    """Return `host:port` for processes on this machine, for a server that listens on `host`."""
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`.

    Raises:
        SettingsError: `host` is neither localhost nor an IP address.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise SettingsError(f"--listen: {host!r} is not an IP address") from None


def is_surely_loopback(host: str) -> bool:
    """As `is_loopback`; False for a host name, which may resolve to any address."""
    try:
        return is_loopback(host)
    except SettingsError:
        return False
