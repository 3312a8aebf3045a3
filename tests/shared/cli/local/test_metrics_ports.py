"""Where the processes of `cluster up` serve their metrics."""

import socket

import pytest

from shared.cli.local.cluster import metrics_ports
from shared.errors import SettingsError


def test_each_process_has_the_port_after_the_one_before() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        first = free.getsockname()[1]
    assert metrics_ports(["c"], first) == {"c": first}
    assert list(metrics_ports(["c", "w1", "w2"], 0)) == ["c", "w1", "w2"]


def test_free_ports_are_all_different() -> None:
    ports = metrics_ports([str(number) for number in range(20)], 0)
    assert len(set(ports.values())) == 20 and 0 not in ports.values()


def test_a_port_that_is_in_use_or_does_not_exist_is_told_with_whose_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"--metrics-port: c cannot listen .*:{port}"):
            metrics_ports(["c"], port)
    with pytest.raises(SettingsError, match=r"--metrics-port: w1 cannot listen .*:65536"):
        metrics_ports(["c", "w1"], 65535)
