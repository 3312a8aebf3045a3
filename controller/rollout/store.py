"""Roll-outs in JetStream: the state, and the text of each version."""

from shared import subjects
from shared.bus import Bus, KeyValueStore
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.messages.rollout import MAX_STORED, RolloutState, Version


class ConfigVersionStore:
    """Writes are compare-and-set: a controller that has not read the last change is rejected."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = KeyValueStore(bus, subjects.ROLLOUT_BUCKET)
        self._revision = 0

    async def state(self) -> RolloutState:
        """Read the state.

        Raises:
            BusError: JetStream is unavailable, does not answer, or has a value that cannot be read.
        """
        entry = await self._bucket.get(subjects.ROLLOUT_KEY)
        if entry is None:
            self._revision = 0
            return RolloutState()
        self._revision = entry.revision
        try:
            return decode(RolloutState, entry.value)
        except DecodeError as error:
            raise BusError(f"the state of the roll-out cannot be read: {error.message}") from None

    async def save_state(self, state: RolloutState) -> None:
        """Write the state, if it has not changed since this store last read or wrote it.

        Raises:
            WriteConflict: another controller has changed it since.
            BusError: as `state`.
        """
        key, value = subjects.ROLLOUT_KEY, encode(state)
        self._revision = await self._bucket.put(key, value, after=self._revision)

    async def version(self, number: int) -> Version | None:
        """Read a version; None if it does not exist, or was deleted.

        Raises:
            BusError: as `state`.
        """
        entry = await self._bucket.get(subjects.rollout_version(number))
        if entry is None:
            return None
        try:
            return decode(Version, entry.value)
        except DecodeError as error:
            raise BusError(f"version {number} cannot be read: {error.message}") from None

    async def save_version(self, version: Version) -> None:
        """Write a new version, and delete the one that is `MAX_STORED` versions older.

        Raises:
            WriteConflict: the version exists already.
            BusError: as `state`.
        """
        await self._bucket.put(subjects.rollout_version(version.version), encode(version), after=0)
        if version.version > MAX_STORED:
            await self._bucket.delete(subjects.rollout_version(version.version - MAX_STORED))
