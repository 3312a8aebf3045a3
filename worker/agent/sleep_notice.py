"""Sleep notifications of macOS: the machine wants to sleep, will sleep, or has woken.

Source: Apple, Technical Q&A QA1340, "Registering and unregistering for sleep and wake
notifications", and IOKit's `IOMessage.h`. Other systems are not supported.
"""

import asyncio
import contextlib
import ctypes
import logging
import platform
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

WANTS_TO_SLEEP = 0xE0000270
"""The machine was idle for a while; a program may refuse."""

WILL_SLEEP = 0xE0000280
"""The machine sleeps once all programs have allowed it, at the latest after half a minute."""

STAYS_AWAKE = 0xE0000290
HAS_WOKEN = 0xE0000300

_READY_WITHIN_S = 15.0
_REPLY_WITHIN_S = 20.0
_RUN_LOOP_INTERVAL_S = 0.5

_FRAMEWORKS = "/System/Library/Frameworks/"
_PORT = ctypes.c_uint32
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _PORT, ctypes.c_uint32, ctypes.c_void_p)

OnMessage = Callable[[int, int], None]
"""Called with a message, and the number that its reply must have."""


class PowerManagement(Protocol):
    """The power management of one machine."""

    def listen(self, on_message: OnMessage) -> None:
        """Call `on_message` on this thread until `stop`.

        Raises:
            Exception: the system does not send notifications.
        """

    def allow(self, number: int) -> None: ...

    def refuse(self, number: int) -> None: ...

    def stop(self) -> None: ...


class SleepHandler:
    """Prepares a worker for the sleep of its machine.

    Args:
        busy: whether the worker has requests: then idle sleep is refused.
        before: awaited before sleep.
        after: awaited when the machine has woken, or stays awake.
    """

    def __init__(
        self,
        power: PowerManagement,
        *,
        busy: Callable[[], bool],
        before: Callable[[], Awaitable[None]],
        after: Callable[[], Awaitable[None]],
    ) -> None:
        self._power = power
        self._busy = busy
        self._before = before
        self._after = after

    async def run(self) -> None:
        """Listen until cancelled; returns if the system does not send notifications."""
        loop = asyncio.get_running_loop()

        def on_message(message: int, number: int) -> None:
            handling = self._handle(message)
            try:
                future = asyncio.run_coroutine_threadsafe(handling, loop)
            except RuntimeError:  # the event loop is closed
                handling.close()
                self._reply(message, number, allow=True)
                return
            try:
                allow = future.result(_REPLY_WITHIN_S)
            except Exception as error:  # a failure here must not keep the Mac awake
                logger.warning("not prepared for the sleep of this machine: %r", error)
                future.cancel()
                allow = True
            self._reply(message, number, allow=allow)

        listening = asyncio.ensure_future(asyncio.to_thread(self._power.listen, on_message))
        try:
            await asyncio.shield(listening)
        except Exception as error:  # the worker serves without notifications
            logger.warning("no sleep notifications from this machine: %s", error)
        finally:
            self._power.stop()

    def _reply(self, message: int, number: int, *, allow: bool) -> None:
        if message in (WANTS_TO_SLEEP, WILL_SLEEP):
            (self._power.allow if allow else self._power.refuse)(number)

    async def _handle(self, message: int) -> bool:
        """Handle a message; returns whether the machine may sleep."""
        if message == WANTS_TO_SLEEP:
            return not self._busy()
        if message == WILL_SLEEP:
            logger.info("this machine is about to sleep")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_READY_WITHIN_S):
                    await self._before()
        elif message in (STAYS_AWAKE, HAS_WOKEN):
            await self._after()
        return True


class MacPowerManagement:
    """The power management of macOS."""

    def __init__(self) -> None:
        self._root = 0
        self._stopping = threading.Event()

    def _load(self) -> None:
        self._io = ctypes.CDLL(_FRAMEWORKS + "IOKit.framework/IOKit")
        self._core = ctypes.CDLL(_FRAMEWORKS + "CoreFoundation.framework/CoreFoundation")
        io, core, pointer = self._io, self._core, ctypes.c_void_p
        io.IORegisterForSystemPower.argtypes = [pointer, pointer, _CALLBACK, pointer]
        io.IORegisterForSystemPower.restype = _PORT
        io.IODeregisterForSystemPower.argtypes = [pointer]
        io.IONotificationPortGetRunLoopSource.argtypes = [pointer]
        io.IONotificationPortGetRunLoopSource.restype = pointer
        io.IONotificationPortDestroy.argtypes = [pointer]
        io.IOServiceClose.argtypes = [_PORT]
        io.IOAllowPowerChange.argtypes = [_PORT, ctypes.c_ssize_t]
        io.IOCancelPowerChange.argtypes = [_PORT, ctypes.c_ssize_t]
        core.CFRunLoopGetCurrent.restype = pointer
        core.CFRunLoopAddSource.argtypes = [pointer, pointer, pointer]
        core.CFRunLoopRunInMode.argtypes = [pointer, ctypes.c_double, ctypes.c_bool]
        self._mode = pointer.in_dll(core, "kCFRunLoopDefaultMode")

    def listen(self, on_message: OnMessage) -> None:
        """Call `on_message` on this thread until `stop`.

        Raises:
            OSError, AttributeError, ValueError: the system refuses, or its API has changed.
        """
        self._load()

        def on_power(_context: int, _service: int, message: int, number: int | None) -> None:
            on_message(message, number or 0)

        callback = _CALLBACK(on_power)
        port, notifier = ctypes.c_void_p(), _PORT()
        self._root = self._io.IORegisterForSystemPower(
            None, ctypes.byref(port), callback, ctypes.byref(notifier)
        )
        if not self._root:
            raise OSError("IORegisterForSystemPower refused")
        try:
            source = self._io.IONotificationPortGetRunLoopSource(port)
            self._core.CFRunLoopAddSource(self._core.CFRunLoopGetCurrent(), source, self._mode)
            while not self._stopping.is_set():
                self._core.CFRunLoopRunInMode(self._mode, _RUN_LOOP_INTERVAL_S, False)
        finally:
            self._io.IODeregisterForSystemPower(ctypes.byref(notifier))
            self._io.IOServiceClose(self._root)
            self._io.IONotificationPortDestroy(port)

    def allow(self, number: int) -> None:
        self._io.IOAllowPowerChange(self._root, number)

    def refuse(self, number: int) -> None:
        self._io.IOCancelPowerChange(self._root, number)

    def stop(self) -> None:
        """Make `listen` return soon."""
        self._stopping.set()


def this_machine() -> PowerManagement | None:
    """Return the power management of this machine; None if the system is not supported."""
    return MacPowerManagement() if platform.system() == "Darwin" else None
