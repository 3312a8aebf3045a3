"""What JetStream keeps of roll-outs: the state, and each version's text."""

from shared import subjects
from shared.bus import Bus, KeyValueStore
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.messages.rollout import MOST_KEPT, RolloutState, Version


class RolloutStore:
    """Changes of the state come one after another: who did not see the last one is refused."""

    def __init__(self, bus: Bus) -> None:
        self._kept = KeyValueStore(bus, subjects.ROLLOUT_BUCKET)
        self._revision = 0

    async def state(self) -> RolloutState:
        """As it is now.

        Raises:
            BusError: JetStream is not there, does not answer, or keeps what cannot be read.
        """
        entry = await self._kept.get(subjects.ROLLOUT_KEY)
        if entry is None:
            self._revision = 0
            return RolloutState()
        self._revision = entry.revision
        try:
            return decode(RolloutState, entry.value)
        except DecodeError as error:
            raise BusError(f"the state of the roll-out cannot be read: {error.message}") from None

    async def keep_state(self, state: RolloutState) -> None:
        """After the one that was read or kept last.

        Raises:
            Overtaken: another controller has changed it since.
            BusError: as `state`.
        """
        key, value = subjects.ROLLOUT_KEY, encode(state)
        self._revision = await self._kept.put(key, value, after=self._revision)

    async def version(self, number: int) -> Version | None:
        """One version; None where it is not kept (any more).

        Raises:
            BusError: as `state`.
        """
        entry = await self._kept.get(subjects.rollout_version(number))
        if entry is None:
            return None
        try:
            return decode(Version, entry.value)
        except DecodeError as error:
            raise BusError(f"version {number} cannot be read: {error.message}") from None

    async def keep_version(self, version: Version) -> None:
        """A new one; the oldest goes where there are many.

        Raises:
            Overtaken: there is one of that number.
            BusError: as `state`.
        """
        await self._kept.put(subjects.rollout_version(version.version), encode(version), after=0)
        if version.version > MOST_KEPT:
            await self._kept.delete(subjects.rollout_version(version.version - MOST_KEPT))
