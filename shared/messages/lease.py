"""The leader's lease."""

from pydantic import Field

from shared.codec import InternalMessage
from shared.ids import NAME_PATTERN, BootId, ControllerId
from shared.messages.base import Count


class LeaseRecord(InternalMessage):
    """The leader's lease in JetStream.

    Attributes:
        term: one higher than that of the previous leader. Every order of a leader carries it, and
            attempts of term t are counted from 1000 * (t - 1) + 1, so that no number is used twice.
        released: the controller does not lead any more; another one may lead at once.
    """

    controller: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    term: Count = 0
    released: bool = False
