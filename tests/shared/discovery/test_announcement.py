"""What may be announced, and what is made of what anybody may have sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus import ServerInfo
from shared.discovery.announcement import ClusterAnnouncement, read_announcement
from shared.discovery.announcer import announcement_of
from shared.discovery.selection import select_cluster
from shared.errors import SettingsError
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL

OPEN = ClusterAnnouncement("home", "N1", "open", ("nats://10.0.0.1:4222",), 4222)


def sent(announcement: ClusterAnnouncement, **changed: bytes) -> dict[bytes, bytes | None]:
    """As a TXT record arrives."""
    told = {key.encode(): value.encode() for key, value in announcement.properties().items()}
    return {**told, **{key.encode(): value for key, value in changed.items()}}


def server(host: str = "0.0.0.0", *, asks: bool = False, cluster: str = "") -> ServerInfo:
    return ServerInfo("N1", "n-name", cluster, host, 4222, asks)


def test_what_is_told_is_heard() -> None:
    assert read_announcement(sent(OPEN), ["10.0.0.9"], 4222) == OPEN
    unnamed = ClusterAnnouncement("home", "N1", "keys", (), 4222, "ab" * 32)
    heard = read_announcement(sent(unnamed), ["10.0.0.9", "fd00::1"], 4222)
    assert heard is not None
    assert heard.servers == ("nats://10.0.0.9:4222", "nats://[fd00::1]:4222")
    assert (heard.access, heard.authority) == ("keys", "ab" * 32)


@pytest.mark.parametrize(
    "changed",
    [
        {"protocol": str(PROTOCOL + 1).encode()},
        {"protocol": b"x"},
        {"protocol": b"9" * 5000},
        {"id": b""},
        {"access": b"everything"},
        {"servers": b"file:///etc/passwd"},
        {"servers": b"nats://ok:4222,nats://" + b"x" * 300},
        {"authority": b"zz"},
        {"cluster": b"\xff\xfe"},
    ],
    ids=str,
)
def test_what_is_wrong_is_not_heard(changed: dict[str, bytes]) -> None:
    assert read_announcement(sent(OPEN, **changed), ["10.0.0.9"], 4222) is None


def test_nowhere_to_go_is_not_heard() -> None:
    nowhere = ClusterAnnouncement("home", "N1", "open", (), 4222)
    assert read_announcement(sent(nowhere), [], 4222) is None


def test_a_name_cannot_paint_the_terminal() -> None:
    heard = read_announcement(sent(OPEN, cluster=b"\x1b[31mred\n"), [], 4222)
    assert heard is not None and heard.cluster.isprintable()


@given(st.dictionaries(st.binary(max_size=40), st.none() | st.binary(max_size=300)))
def test_whatever_comes_nothing_breaks(properties: dict[bytes, bytes | None]) -> None:
    read_announcement(properties, ["10.0.0.9"], 4222)


def test_too_many_servers_are_cut_at_a_whole_one() -> None:
    many = tuple(f"nats://server-{n}.example:4222" for n in range(40))
    heard = read_announcement(sent(ClusterAnnouncement("c", "i", "open", many, 4222)), [], 4222)
    assert heard is not None and 3 < len(heard.servers) < 40
    assert heard.servers == many[: len(heard.servers)]


def test_what_only_this_machine_reaches_is_not_announced() -> None:
    assert announcement_of(NatsSettings(), server("127.0.0.1")) is None
    assert announcement_of(NatsSettings(servers=["nats://localhost:4222"]), server("::1")) is None
    told = announcement_of(NatsSettings(), server("0.0.0.0"))
    assert told is not None and told.servers == () and told.access == "open"
    assert announcement_of(NatsSettings(), server("::")) is not None


def test_no_secret_is_announced() -> None:
    settings = NatsSettings(servers=["nats://ada:secret@mac-1:4222"], token="hidden")
    told = announcement_of(settings, server(asks=True))
    assert told is not None and told.access == "token"
    assert told.servers == ("nats://mac-1:4222",)
    assert "secret" not in str(told) and "hidden" not in str(told)


def test_who_asks_for_what() -> None:
    keys = announcement_of(NatsSettings(nkey_seed_file="x.nk"), server(asks=True, cluster="office"))
    assert keys is not None and (keys.access, keys.cluster, keys.id) == ("keys", "office", "office")
    asks = announcement_of(NatsSettings(), server(asks=True))
    assert asks is not None and asks.access == "keys"


def test_only_an_open_one_is_followed_and_only_where_there_is_one() -> None:
    assert select_cluster([OPEN]) is OPEN
    for access, said in (("token", "--token"), ("keys", "cluster auth add worker")):
        with pytest.raises(SettingsError, match=said):
            select_cluster([ClusterAnnouncement("c", "i", access, OPEN.servers, 4222)])  # type: ignore[arg-type]
    other = ClusterAnnouncement("other", "N2", "open", ("nats://10.0.0.2:4222",), 4222)
    with pytest.raises(SettingsError, match=r"several clusters.*--nats(.|\n)*home(.|\n)*other"):
        select_cluster([OPEN, other])
