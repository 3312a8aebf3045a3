"""Whether a host name or address is loopback."""

import ipaddress


def is_surely_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server that listens on `host`.

    A host name other than `localhost` may resolve to any address, so the answer for it is False.
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
