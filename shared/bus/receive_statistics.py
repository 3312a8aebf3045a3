"""What a process received and did not handle: counted by kind, and logged so that a flood of it is
no flood of log lines."""

import logging
from collections import Counter
from typing import Literal, get_args

from shared.subjects import INBOX_PREFIX, INTERNAL_INBOX_PREFIX

logger = logging.getLogger(__name__)

DropKind = Literal["subject", "headers", "message", "too_many"]
"""Why a message did not reach its handler: its subject is no printable text, or its reply subject
no visible ASCII; its headers cannot be read; the client failed on it; too many of its sender, or of
all, wait for the handler."""
DROP_KINDS: tuple[DropKind, ...] = get_args(DropKind)

_SHOWN = 80


class ReceiveStatistics:
    """
    Attributes:
        dropped: messages that reached no handler, by kind.
        failed: exceptions of handlers, by the subject of their subscription; `inbox` for all
            inboxes together.
    """

    def __init__(self) -> None:
        self.dropped: Counter[DropKind] = Counter()
        self.failed: Counter[str] = Counter()

    def count_dropped(self, kind: DropKind, detail: object) -> None:
        """Count a message that reaches no handler; the first one of each kind is logged."""
        self.dropped[kind] += 1
        if self.dropped[kind] == 1:
            logger.warning(
                "a message was dropped (%s): %.*r; more of this kind are only counted",
                kind, _SHOWN, detail,
            )  # fmt: skip

    def count_failed(self, subject: str, error: BaseException) -> None:
        """Count a handler's exception; it is logged the first, second, fourth, eighth ... time."""
        if subject.startswith((INBOX_PREFIX, INTERNAL_INBOX_PREFIX)):
            subject = "inbox"
        self.failed[subject] += 1
        times = self.failed[subject]
        if times & (times - 1) == 0:
            logger.error("the handler of %s failed (%d)", subject, times, exc_info=error)
