"""A supervised connection to NATS: its subscriptions survive every kind of disconnect.

The client reconnects by itself after a lost connection, but most protocol errors close it
permanently. `Bus` then creates a new client and restores all subscriptions.
"""

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping

import nats.errors
from nats.js import JetStreamContext

from shared.bus.client import PatchedNatsClient, ServerInfo
from shared.bus.options import CONNECT_TIMEOUT_S, RECONNECT_WAIT_S, client_options
from shared.bus.receive_statistics import ReceiveStatistics
from shared.bus.refusals import PermissionViolationWatcher
from shared.bus.service import MicroService
from shared.bus.subscription import Handler, IncomingMessage, Subscription, call_handler
from shared.errors import BusError, BusTimeout, BusUnreachable, NoResponders, PayloadTooLarge
from shared.settings.nats import NatsSettings
from shared.tasks import cancellable

logger = logging.getLogger(__name__)

_REBUILD_WAIT_S = 0.5
_JETSTREAM_S = 2.0
_MAX_REPLIES = 10_000
"""To one query of several responders."""


class Bus:
    """One connection to NATS. Create it with `Bus.connect`."""

    def __init__(self, settings: NatsSettings, *, name: str, inbox_prefix: str = "_INBOX") -> None:
        self._options = client_options(settings, name=name, inbox_prefix=inbox_prefix)
        self.statistics = ReceiveStatistics()
        """What was received and not handled, over all connections."""
        self._client = PatchedNatsClient(self.statistics)
        self._attached: set[Subscription | MicroService] = set()
        self._last_error: Exception | None = None
        self._violations = PermissionViolationWatcher()
        self._closing = False
        self._rebuilding: asyncio.Task[None] | None = None
        self._disconnected = asyncio.Event()
        self._connected = asyncio.Event()
        self._echoes: dict[bytes, asyncio.Event] = {}
        self._echo: Subscription | None = None
        self._echo_subject = ""
        self.on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self.connections = 0
        """Number of connections made so far; messages sent around a change may be lost."""

    @classmethod
    async def connect(
        cls,
        settings: NatsSettings,
        *,
        name: str,
        inbox_prefix: str = "_INBOX",
        wait_s: float | None = None,
    ) -> "Bus":
        """Connect, and retry until `wait_s` has passed (None: without limit).

        Raises:
            BusUnreachable: no server answered within `wait_s`.
            SettingsError: a credentials or TLS file is unusable.
        """
        bus = cls(settings, name=name, inbox_prefix=inbox_prefix)
        loop = asyncio.get_running_loop()
        deadline = None if wait_s is None else loop.time() + wait_s
        warned = False
        while True:
            try:
                await bus._open()
                return bus
            except _CONNECT_ERRORS as error:
                if deadline is not None and loop.time() >= deadline:
                    raise BusUnreachable(bus._describe(error)) from None
                if not warned:
                    logger.warning("%s; retrying", bus._describe(error))
                    warned = True
            await asyncio.sleep(RECONNECT_WAIT_S)

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The largest message, in bytes, that the server accepts."""
        return self._client.max_payload

    @property
    def server_url(self) -> str:
        """The server in use, without credentials; empty while disconnected."""
        url = self._client.connected_url
        return f"{url.scheme}://{url.hostname}:{url.port}" if url else ""

    @property
    def server_info(self) -> ServerInfo:
        """The INFO of the server of the last connection."""
        return self._client.server_facts

    def jetstream(self) -> JetStreamContext:
        """Return the JetStream context of the current connection; for `shared.bus` only."""
        return self._client.jetstream(timeout=_JETSTREAM_S)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def wait_lost(self) -> None:
        """Return once the connection is lost; immediately if it is."""
        await self._disconnected.wait()

    async def wait_connected(self) -> None:
        """Return once there is a connection; immediately if there is."""
        await self._connected.wait()

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Put a message into the connection's buffer.

        Raises:
            PayloadTooLarge: the message exceeds the server's limit.
            BusError: the connection is closed, or down with a full buffer; or a subject has
                characters that no subject may have, or too many.
        """
        _check_line(subject, reply)
        try:
            await self._client.publish(
                subject, payload, reply=reply, headers=dict(headers) if headers else None
            )
        except nats.errors.MaxPayloadError:
            raise PayloadTooLarge(
                f"{len(payload)} bytes for {subject}; the server accepts {self.max_payload}"
            ) from None
        except nats.errors.Error as error:
            raise BusError(f"publish to {subject}: {error or type(error).__name__}") from None

    def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """As `publish`, without a wait while much is buffered.

        Raises:
            PayloadTooLarge: the message exceeds the server's limit.
            BusError: there is no connection; or as `publish`.
        """
        _check_line(subject, reply)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(
                f"{len(payload)} bytes for {subject}; the server accepts {self.max_payload}"
            )
        if not self._client.is_connected:
            raise BusError(f"publish to {subject}: there is no connection")
        self._client.send(subject, payload, reply)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> IncomingMessage:
        """Publish, and return the first reply.

        Raises:
            NoResponders: `subject` has no subscriber.
            BusTimeout: no reply within `timeout_s`.
            BusPermissionDenied: the server does not permit this user the subject.
            PayloadTooLarge, BusError: as `publish`.
        """
        _check_line(subject)
        try:
            async with self._violations.watch(subject):
                with cancellable():
                    msg = await self._client.request(
                        subject,
                        payload,
                        timeout=timeout_s,
                        headers=dict(headers) if headers else None,
                    )
        except nats.errors.NoRespondersError:
            raise NoResponders(f"no responders on {subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise BusTimeout(f"no answer on {subject} within {timeout_s:g} s") from None
        except nats.errors.MaxPayloadError:
            raise PayloadTooLarge(f"{len(payload)} bytes for {subject}") from None
        except nats.errors.Error as error:
            raise BusError(f"request to {subject}: {error or type(error).__name__}") from None
        return IncomingMessage(msg.subject, msg.reply, msg.data)

    async def request_many(
        self, subject: str, payload: bytes, *, wait_s: float
    ) -> list[IncomingMessage]:
        """Publish, and return the replies within `wait_s`; empty if there are no responders.

        Raises:
            BusPermissionDenied: the server does not permit this user the subject.
            PayloadTooLarge, BusError: as `publish`.
        """
        replies: list[IncomingMessage] = []
        no_responders = asyncio.Event()

        async def collect(message: IncomingMessage) -> None:
            if message.no_responders:
                no_responders.set()
            elif len(replies) < _MAX_REPLIES:
                replies.append(message)

        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox, collect)
        try:
            async with self._violations.watch(subject):
                await self.publish(subject, payload, reply=inbox)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await no_responders.wait()
        finally:
            await subscription.unsubscribe()
        return replies

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Call `handler` for each message, one after another, until unsubscribed.

        Raises:
            BusError: the connection is closed.
        """
        subscription = Subscription(subject, queue, handler, self.statistics, self._forget)
        await self._attach(subscription)
        return subscription

    async def serve(self, service: MicroService) -> None:
        """Register a NATS micro service, so that `nats micro ls/info/stats` finds it.

        Raises:
            BusError: the connection is closed.
        """
        await self._attach(service)

    def _forget(self, subscription: Subscription) -> None:
        """Do not restore a subscription after the next reconnect."""
        self._attached.discard(subscription)

    async def flush(self, *, timeout_s: float = 2) -> None:
        """Wait until the server has received everything that was published.

        Publishes a message to an inbox of its own. The client's own flush is not used: if its
        PONG arrives after the timeout, the client stops reading forever (nats-py 2.16).

        Raises:
            BusPermissionDenied: the server does not permit this user its inboxes.
            BusError: the message did not return in time.
        """
        if self._echo is None:
            self._echo_subject = self.new_inbox()
            self._echo = await self.subscribe(self._echo_subject, self._on_echo)
        mark = secrets.token_bytes(8)
        event = self._echoes[mark] = asyncio.Event()
        try:
            async with self._violations.watch(self._echo_subject):
                await self.publish(self._echo_subject, mark)
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        except TimeoutError:
            raise BusError(f"the server did not answer within {timeout_s:g} s") from None
        finally:
            del self._echoes[mark]

    async def _on_echo(self, message: IncomingMessage) -> None:
        if event := self._echoes.get(message.payload):
            event.set()

    async def close(self) -> None:
        """Send the buffered messages, then close. Safe to call twice."""
        self._closing = True
        if self._rebuilding is not None:
            self._rebuilding.cancel()
        if self._client.is_connected:
            with contextlib.suppress(BusError):
                await self.flush()
        for target in self._attached:
            if isinstance(target, Subscription):
                target.close()
        with contextlib.suppress(nats.errors.Error):
            await self._client.close()

    async def _attach(self, target: Subscription | MicroService) -> None:
        self._attached.add(target)
        try:
            await target.attach(self._client)
        except nats.errors.ConnectionClosedError:
            if self._closing:
                self._attached.discard(target)
                raise BusError("the connection is closed") from None
        except BaseException:
            self._attached.discard(target)
            raise

    async def _open(self) -> None:
        client = PatchedNatsClient(self.statistics)

        # Events of a client that is still connecting, or was replaced, are ignored.
        async def disconnected() -> None:
            if client is self._client:
                self._on_disconnect()

        async def reconnected() -> None:
            if client is self._client:
                self.connections += 1
                await self._on_reconnect()

        async def closed() -> None:
            if client is self._client and not self._closing:
                self._on_disconnect()
                if self._rebuilding is None or self._rebuilding.done():
                    self._rebuilding = asyncio.create_task(self._rebuild())

        try:
            async with asyncio.timeout(2 * CONNECT_TIMEOUT_S):
                await client.connect(
                    **{**self._options, "max_reconnect_attempts": 1},
                    error_cb=self._on_error,
                    disconnected_cb=disconnected,
                    reconnected_cb=reconnected,
                    closed_cb=closed,
                    lame_duck_mode_cb=client.force_reconnect,
                )
        except BaseException:
            with contextlib.suppress(Exception):
                await client.close()
            raise
        client.options["max_reconnect_attempts"] = -1  # only the first connect may give up
        self._client = client
        self._last_error = None
        self.connections += 1
        self._disconnected.clear()
        self._connected.set()

    def _describe(self, error: BaseException) -> str:
        servers = ", ".join(_without_credentials(server) for server in self._options["servers"])
        cause = self._last_error or error
        reason = str(cause) or type(cause).__name__
        reason += next((f" ({why})" for sign, why in _REFUSALS.items() if sign in reason), "")
        return f"cannot reach NATS at {servers}: {reason}"

    async def _on_error(self, error: Exception) -> None:
        if (subject := self._violations.record(str(error))) is not None:
            logger.warning("the NATS server does not permit this: %s%s", subject, _AFTER_UPGRADE)
            return
        if isinstance(error, nats.errors.SlowConsumerError):
            self.statistics.count_dropped("too_many", error.subject)
            return
        # The server closes the connection after an authorization error, which is the cause.
        if "Authorization" not in str(self._last_error):
            self._last_error = error
        logger.debug("NATS: %r", error)

    def _on_disconnect(self) -> None:
        if self._disconnected.is_set():
            return
        self._connected.clear()
        self._disconnected.set()
        if not self._closing:
            logger.warning("the connection to NATS is lost")

    async def _on_reconnect(self) -> None:
        self._disconnected.clear()
        self._connected.set()
        logger.info("reconnected to NATS at %s", self.server_url)
        for callback in self.on_reconnect:
            await call_handler(callback(), "a reconnect", self.statistics)

    async def _rebuild(self) -> None:
        logger.warning("the NATS client closed; creating a new connection")
        while not self._closing:
            try:
                await self._open()
                for target in list(self._attached):
                    await target.attach(self._client)
                break
            except _CONNECT_ERRORS:
                with contextlib.suppress(Exception):
                    await self._client.close()  # else messages would come over two connections
                await asyncio.sleep(_REBUILD_WAIT_S)
        if not self._closing:
            await self._on_reconnect()


_MAX_SUBJECTS_LENGTH = 2048
"""Of a subject and its reply subject: the server ends a connection whose lines are longer than its
`max_control_line`, 4,096 bytes by default."""
_VISIBLE_ASCII = re.compile("[!-~]+").fullmatch


def _check_line(subject: str, reply: str = "") -> None:
    """
    Raises:
        BusError: the server would end the connection over this message, or read other lines in it.
    """
    if len(subject) + len(reply) > _MAX_SUBJECTS_LENGTH:
        raise BusError(f"publish to {subject[:80]}...: the subject is too long")
    if not _VISIBLE_ASCII(subject) or (reply and not _VISIBLE_ASCII(reply)):
        line = f"{subject} {reply}".rstrip().encode("unicode_escape").decode()
        raise BusError(f"publish to {line}: not a subject")


_AFTER_UPGRADE = (
    " (after an upgrade: `cluster auth renew` generates the server's configuration again; then "
    "restart the server)"
)
_REFUSALS = {
    "Authorization": "the server does not know this key, token or password, or requires one",
    "maximum account active connections exceeded": "this client has as many connections as it may: "
    "end some of its programs, or let an administrator raise the limit with `cluster auth limit`",
    "maximum connections exceeded": "the server has as many connections as it accepts from all",
}
"""What the server says when it refuses a connection, and what it means."""
_CONNECT_ERRORS = (OSError, TimeoutError, nats.errors.Error)


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.rpartition("://")
    return f"{scheme or 'nats'}://{rest.rpartition('@')[2]}"
