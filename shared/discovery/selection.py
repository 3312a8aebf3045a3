"""How a worker that nobody told anything finds the cluster that it serves."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from shared.discovery.announcement import Announcement
from shared.discovery.finder import Finder, finding
from shared.errors import SettingsError
from shared.settings.nats import DiscoverySettings, NatsSettings
from shared.settings.tree import ClusterSettings

_LOOK_S = 1.0
"""Answers come within 1.2 s; what is there after two looks alike is decided on."""
_LOCAL_S = 0.5


def may_follow(settings: ClusterSettings) -> bool:
    """Only where neither a file, a variable, a flag nor a membership says where NATS is."""
    return settings.discovery.enabled and "nats" not in settings.model_fields_set


async def servers_to_follow(
    discovery: DiscoverySettings, here: NatsSettings, tell: Callable[[str], None]
) -> list[str]:
    """That on this machine where there is one; else those of the one open cluster which announces
    itself. Waits until there is either.

    Args:
        here: as they are where nobody says otherwise.
        tell: hears what a person should know.

    Raises:
        SettingsError: there are several clusters, or one that lets in only who has a secret: none
            is sent to who merely announces itself.
    """
    if await _listens(here.servers[0]):
        return here.servers
    async with finding(discovery.interfaces) as finder:
        found = await _either(finder, here.servers[0], tell)
    if not found:
        return here.servers
    chosen = the_one_to_follow(found)
    tell(
        f"no NATS server on this machine; following the cluster {line_of(chosen)}, which "
        "announces itself. To settle it: --nats, or --no-discovery"
    )
    return list(chosen.servers)


async def _either(finder: Finder, here: str, tell: Callable[[str], None]) -> Sequence[Announcement]:
    """The clusters, once there are some; none once the server here listens."""
    before: Sequence[Announcement] | None = None
    told = False
    while True:
        await asyncio.sleep(_LOOK_S)
        if await _listens(here):
            return ()
        now = finder.clusters
        if now and now == before:
            return now
        if before == [] and not told:
            told = True
            tell(
                f"no NATS server at {here}, and no cluster announces itself on this network; "
                "waiting for either. `worker join` with a token, or --nats, names one"
            )
        before = now


def the_one_to_follow(found: Sequence[Announcement]) -> Announcement:
    """
    Raises:
        SettingsError: as `servers_to_follow`.
    """
    if len(found) > 1:
        listed = "".join(f"\n  {line_of(each)}" for each in found)
        raise SettingsError(
            f"several clusters announce themselves; name one with --nats, or join it:{listed}"
        )
    (one,) = found
    server = one.servers[0]
    match one.access:
        case "open":
            return one
        case "token":
            raise SettingsError(
                f"the cluster {one.cluster} at {server} asks for a token, which `cluster up` "
                f"there shows: worker --nats {server} --token TOKEN"
            )
        case "keys":
            raise SettingsError(
                f"the cluster {one.cluster} at {server} asks for keys. Where it was set up: "
                "cluster auth add worker NAME; then here: worker join"
            )


def line_of(found: Announcement) -> str:
    """For people."""
    return f"{found.cluster} ({found.access}) at {', '.join(found.servers)}"


async def _listens(server: str) -> bool:
    parts = urlsplit(server)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LOCAL_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
    return False
