"""One engine process from the agent's side: its start, its link, its watchdogs, its restarts."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

import orjson
import psutil

from shared.errors import DecodeError
from shared.python_module import python_module
from shared.settings.worker import EnginesSettings
from worker.engine_process.exit import UnexpectedEngineExit
from worker.host.machine import environment_with_threads
from worker.link.activity import EngineActivity, EngineActivityRecord, new_activity_file
from worker.link.facts import EngineAlive, EngineMeasured, EngineStarted, Fact
from worker.link.frames import HEADER, decode_body, encode_frame, frame_length
from worker.link.orders import Order, Stop

logger = logging.getLogger(__name__)

EngineState = Literal["starting", "running", "restarting", "failed", "stopped"]
_RESTART_WINDOW_S = 600
_MAX_STDERR_LINES = 200
_STDERR_LINE_BYTES = 1024 * 1024
_WATCHDOG_INTERVAL_S = 0.5
_PREPARATION_GRACE = 2
"""A prompt whose preparation was to be stopped by then is blamed after as long again."""
_NOT_MEASURED = EngineMeasured(0, 0, 0, 0, 0, 0, 0.0)
_LIBRARY_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
"""Engines load models from local folders: no library needs the network, or should advise people to
install PyTorch."""


class EngineProcess:
    """Keeps one engine running within its restart limit.

    Args:
        on_fact: awaited for each fact, in order; meanwhile the agent does not read from the
            engine, so that backpressure reaches it.
        on_lost: awaited when the process has exited unexpectedly, with the reason for people.
        explain: called before `on_lost`; returns whether a model or a request is to blame for the
            exit, which then does not count towards `max_restarts`.
    """

    def __init__(
        self,
        index: int,
        settings: EnginesSettings,
        arguments: list[str],
        threads: int,
        *,
        retry_after_failure_s: float,
        on_fact: Callable[["EngineProcess", Fact], Awaitable[None]],
        on_lost: Callable[["EngineProcess", str], Awaitable[None]],
        explain: Callable[["EngineProcess", UnexpectedEngineExit], bool] = lambda _, __: False,
    ) -> None:
        self.index = index
        self.threads = threads
        self.state: EngineState = "starting"
        self.restarts = 0
        self.started: EngineStarted | None = None
        self.measured = _NOT_MEASURED
        self._settings = settings
        self._arguments = arguments
        self._retry_after_failure_s = retry_after_failure_s
        self._on_fact = on_fact
        self._on_lost = on_lost
        self._explain = explain
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stopping = False
        self._exits: deque[float] = deque()
        self._last_lines: deque[str] = deque(maxlen=_MAX_STDERR_LINES)
        self._silent_s = 0.0  # counted only while the agent reads
        self._reading = False
        self._hang_reason: str | None = None
        self._was_stopped = False  # by SIGSTOP, when it was found silent
        self._hangs_by_prompt = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send(self, order: Order) -> None:
        """Send an order; silently dropped if the engine is dead, which `on_lost` reports, or was
        stopped.

        Raises:
            RequestError: the order has a value that cannot be sent.
        """
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(order))

    async def run(self) -> None:
        """Start the engine, and restart it whenever it exits, until `stop`."""
        while not self._stopping:
            end = await self._run_once()
            if self._stopping:
                break
            self.started, self._writer, self.measured = None, None, _NOT_MEASURED
            logger.error(
                "engine %d ended: %s", self.index, end.reason, extra={"engine": self.index}
            )
            may_restart = self._explain(self, end) or self._may_restart()
            self.state = "restarting" if may_restart else "failed"
            await self._on_lost(self, end.reason)
            delay_s = self._settings.restart_delay_ms / 1000
            await asyncio.sleep(
                delay_s if self.state == "restarting" else self._retry_after_failure_s
            )
            self.restarts += 1
        self.state = "stopped"

    async def stop(self) -> None:
        """Ask the engine to exit, and kill it if that takes too long."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send(Stop())
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout_ms / 1000):
                await process.wait()
        except TimeoutError:
            logger.warning("engine %d did not stop in time; killing it", self.index)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._exits.append(now)
        while now - self._exits[0] > _RESTART_WINDOW_S:
            self._exits.popleft()
        return len(self._exits) <= self._settings.max_restarts

    async def _run_once(self) -> UnexpectedEngineExit:
        """Start the process and serve it until it exits; returns how it exited."""
        agent_end, engine_end = socket.socketpair()
        activity_file = new_activity_file()
        activity = EngineActivityRecord.open(activity_file)
        try:
            self._process = await self._start(engine_end.fileno(), activity_file)
        except OSError as error:  # the machine has no memory or no process left
            agent_end.close()
            return UnexpectedEngineExit("fault", f"it cannot start: {error.strerror}")
        finally:
            engine_end.close()
            os.close(activity_file)
        reader, self._writer = await asyncio.open_connection(sock=agent_end)
        self._hang_reason, self._was_stopped, self._hangs_by_prompt = None, False, False
        self._last_lines.clear()
        with contextlib.closing(self._writer), contextlib.closing(activity):
            async with asyncio.TaskGroup() as tasks:
                watchdogs = [
                    tasks.create_task(self._kill_slow_start()),
                    tasks.create_task(self._kill_hanging(activity)),
                ]
                tasks.create_task(self._read_stderr(self._process))
                problem = await self._read_facts(reader)
                for watchdog in watchdogs:
                    watchdog.cancel()
                self._writer.close()
                if problem:
                    self.kill()
                status = await self._process.wait()
            if self._hang_reason:
                return UnexpectedEngineExit.by_agent(
                    self._hang_reason,
                    activity.read(),
                    stopped=self._was_stopped,
                    by_prompt=self._hangs_by_prompt,
                )
            if problem:
                return UnexpectedEngineExit("fault", problem)
            return UnexpectedEngineExit.by_itself(status, activity.read(), list(self._last_lines))

    async def _start(self, channel: int, activity: int) -> asyncio.subprocess.Process:
        """Start a process that inherits the descriptors of the link and the activity record."""
        descriptors = ("--fd", str(channel), "--activity-fd", str(activity))
        return await asyncio.create_subprocess_exec(
            *(*python_module("worker.engine"), *descriptors),
            *self._arguments,
            pass_fds=[channel, activity],
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=_STDERR_LINE_BYTES,
            env={**environment_with_threads(self.threads), **_LIBRARY_ENVIRONMENT},
        )

    async def _kill_slow_start(self) -> None:
        limit_s = self._settings.startup_timeout_ms / 1000
        await asyncio.sleep(limit_s)
        if self.started is None:
            self._kill_hung(f"it did not start within {limit_s:g} s")

    async def _kill_hanging(self, activity: EngineActivityRecord) -> None:
        """Kill a process that sends nothing, because it was stopped or hangs, or that prepares one
        prompt for too long. Both are counted in iterations of this loop, and silence only while the
        agent reads: if the agent itself was stopped, that time says nothing about the engine.

        Silence is blamed on the prompt if it has been prepared for as long: native code that does
        not let other threads run stops them all."""
        silent_limit_s = self._settings.hang_timeout_ms / 1000
        prompt_limit_s = _PREPARATION_GRACE * self._settings.preparation_timeout_ms / 1000
        self._silent_s = prepared_s = 0.0
        prompt: EngineActivity | None = None
        while True:
            await asyncio.sleep(_WATCHDOG_INTERVAL_S)
            before, prompt = prompt, activity.prompt()
            is_same = prompt is not None and prompt == before
            prepared_s = prepared_s + _WATCHDOG_INTERVAL_S if is_same else 0.0
            if self.started is not None and self._reading:
                self._silent_s += _WATCHDOG_INTERVAL_S
            reason = None
            if self._silent_s >= silent_limit_s:
                reason = f"no message for {silent_limit_s:g} s"
            elif prepared_s >= prompt_limit_s:
                reason = f"one prompt has been prepared for {prepared_s:g} s"
            if reason is not None:
                self._was_stopped = self._is_stopped()
                self._hangs_by_prompt = prepared_s + _WATCHDOG_INTERVAL_S >= self._silent_s
                self._kill_hung(reason)

    def _is_stopped(self) -> bool:
        """Whether the process was stopped from outside: its silence is not its fault then."""
        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def _kill_hung(self, reason: str) -> None:
        logger.error("engine %d: %s; killing it", self.index, reason)
        self._hang_reason = reason
        self.kill()

    async def _read_facts(self, reader: asyncio.StreamReader) -> str | None:
        """Read facts until the end of file; returns a message if the stream is corrupt."""
        try:
            while True:
                self._reading = True
                header = await reader.readexactly(HEADER.size)
                fact = decode_body(await reader.readexactly(frame_length(header)))
                self._reading, self._silent_s = False, 0.0
                self._note(fact)  # type: ignore[arg-type]
                await self._on_fact(self, fact)  # type: ignore[arg-type]
        except (asyncio.IncompleteReadError, OSError):
            return None
        except DecodeError as error:
            return error.message

    def _note(self, fact: Fact) -> None:
        match fact:
            case EngineStarted():
                self.started, self.state = fact, "running"
            case EngineMeasured():
                self.measured = fact
            case EngineAlive() if fact.stuck_s * 1000 >= self._settings.step_timeout_ms:
                self._kill_hung(f"one step has taken {fact.stuck_s:.0f} s")
            case _:
                pass

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await _read_line(process.stderr):
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            logger.info("%s", _plain(text), extra={"engine": self.index, "kind": "engine"})


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line; one that is too long is replaced by a note."""
    try:
        return await stream.readline()
    except ValueError:  # longer than the stream's limit; the stream dropped it
        return b"(a line too long to show)"


def _plain(line: str) -> str:
    """Return the message of a JSON log line; other lines as they are."""
    try:
        return str(orjson.loads(line)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return line
