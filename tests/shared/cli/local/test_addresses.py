"""Addresses for other machines."""

import ipaddress

import pytest

from shared.cli.local.addresses import network_address
from shared.loopback import is_surely_loopback


@pytest.mark.parametrize(
    ("host", "address"), [("192.168.1.20", "192.168.1.20:4222"), ("fd00::1", "[fd00::1]:4222")]
)
def test_a_server_on_one_address_is_reached_there(host: str, address: str) -> None:
    assert network_address(host, 4222) == address


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_is_reached_at_the_machines_own(host: str) -> None:
    name, _, port = network_address(host, 4222).rpartition(":")
    assert port == "4222" and name
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return  # the host name: this machine has no network
    assert not address.is_unspecified


def test_a_name_may_mean_any_address() -> None:
    assert is_surely_loopback("localhost") and is_surely_loopback("::1")
    assert is_surely_loopback("::ffff:127.0.0.1") and not is_surely_loopback("::ffff:10.0.0.1")
    assert not is_surely_loopback("mac-1.local")
