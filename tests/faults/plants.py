"""Bugs that are planted into running processes, one at least for each promise, so that it is seen
that the judge catches them (docs/chaos.md lists them).

Each replaces a method of ours in the process it is planted in: `controller` and `worker` in the
fleet, `client` in the harness itself.
"""

import asyncio
import contextlib
import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

Where = Literal["controller", "worker", "client"]
Edit = Callable[[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug.

    Attributes:
        promise: which one it breaks, as `judge` calls it.
        what: the bug, in words.
        where: in which processes.
        target: the method that is replaced, as `module.Class.method`.
        make: given the right method, makes the wrong one.
        fault: what has to happen for it to show; None: nothing.
    """

    promise: str
    what: str
    where: Where
    target: str
    make: Callable[[Any], Any]
    fault: str | None = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Meanwhile this process has it."""
        module, cls, method = self.target.rsplit(".", 2)
        owner = getattr(__import__(module, fromlist=[cls]), cls)
        with mock.patch.object(owner, method, self.make(getattr(owner, method))):
            yield


def _publishing(edit: Edit) -> Callable[[Any], Any]:
    """What goes to clients is edited on its way out."""

    def make(publish: Any) -> Any:
        @functools.wraps(publish)
        async def wrong(self: Any, subject: str, payload: bytes, *, reply: str = "") -> None:
            to_client = subject.startswith("_INBOX.") and b'"request_id"' in payload
            for each in edit(payload) if to_client else [payload]:
                await publish(self, subject, each, reply=reply)

        return wrong

    return make


def _ends_twice(payload: bytes) -> list[bytes]:
    return [payload, payload] if b'"done":true' in payload else [payload]


def _never_ends(payload: bytes) -> list[bytes]:
    """For one request of four, by its id."""
    if b'"done":true' not in payload:
        return [payload]
    return [] if zlib.crc32(json.loads(payload)["request_id"].encode()) % 4 == 0 else [payload]


def _always_first_attempt(payload: bytes) -> list[bytes]:
    message = json.loads(payload)
    return [json.dumps({**message, "attempt": 0}).encode()]


def _one_token_less(continuation: Any) -> Any:
    """What the next worker goes on from lacks a token in its middle."""

    def wrong(self: Any, *arguments: Any) -> Any:
        told = continuation(self, *arguments)
        if told is None:
            return None
        ids = {choice: [*known[:-2], *known[-1:]] for choice, known in told.token_ids.items()}
        return told.model_copy(update={"token_ids": ids})

    return wrong


def _always_next(_: Any) -> Any:
    return lambda self, request: True


def _no_retry(_: Any) -> Any:
    return lambda self, request, error, **how: None


def _takes_all_twice(counts: Any) -> Any:
    """Every new token is handed out two times."""

    def wrong(self: Any, outputs: Any) -> Any:
        new = counts(self, outputs)
        return [each for each in new for _ in range(2)]

    return wrong


def _leaves_tasks(end: Any) -> Any:
    def wrong(self: Any, *arguments: Any, **named: Any) -> None:
        _left.add(asyncio.get_running_loop().create_task(asyncio.sleep(3600)))
        end(self, *arguments, **named)

    return wrong


def _leaves_files(accept: Any) -> Any:
    def wrong(self: Any, *arguments: Any, **named: Any) -> Any:
        os.open(os.devnull, os.O_RDONLY)
        return accept(self, *arguments, **named)

    return wrong


def _forgets_none(_: Any) -> Any:
    def wrong(self: Any, request: Any) -> None:
        """The ended stay among the active."""

    return wrong


def _stays_away(run: Any) -> Any:
    async def wrong(self: Any, *arguments: Any) -> None:
        if _began_before(self.id):
            await asyncio.sleep(3600)
        await run(self, *arguments)

    return wrong


def _began_before(name: str) -> bool:
    """Whether a process of that name has asked this before."""
    try:
        Path(os.environ["FAULTS_FOLDER"], f"{name}.began").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


_left: set[asyncio.Task[None]] = set()
_BUS = "shared.bus.bus.Bus.publish"
_KILL = "kill a worker"
PLANTS: dict[str, Plant] = {
    "two ends": Plant(
        "end", "a worker sends the end of a stream twice", "worker", _BUS, _publishing(_ends_twice)
    ),
    "no end": Plant(
        "end", "one stream in four never gets its end", "worker", _BUS, _publishing(_never_ends)
    ),
    "no retry": Plant(
        "success", "what fails is not tried again", "controller",
        "controller.dispatch.dispatcher.Dispatcher._delay_s", _no_retry, _KILL,
    ),
    "doubled tokens": Plant(
        "tokens", "the client library hands out what comes two times", "client",
        "shared.client.assembler.Assembler._new", _takes_all_twice,
    ),
    "lost token": Plant(
        "answer", "a stream that goes on elsewhere lacks a token", "controller",
        "controller.requests.answer_progress.AnswerProgress.continuation", _one_token_less, _KILL,
    ),
    "old as new": Plant(
        "attempt", "workers call every attempt the first", "worker", _BUS,
        _publishing(_always_first_attempt), _KILL,
    ),
    "no turns": Plant(
        "order", "turns of a session do not wait", "controller",
        "controller.requests.session_queues.SessionQueues.is_next", _always_next,
    ),
    "left tasks": Plant(
        "leak", "each request leaves a task behind", "controller",
        "controller.lifecycle.machine.RequestStateMachine._end", _leaves_tasks,
    ),
    "left files": Plant(
        "leak", "each request leaves an open file behind", "worker",
        "worker.scheduling.scheduler.RequestScheduler.accept", _leaves_files,
    ),
    "left requests": Plant(
        "leak", "requests that ended stay in the books", "controller",
        "controller.requests.store.RequestStore.end", _forgets_none,
    ),
    "stays away": Plant(
        "recovery", "a worker that was killed never serves again", "worker",
        "worker.agent.agent.WorkerAgent.run", _stays_away, _KILL,
    ),
}  # fmt: skip
