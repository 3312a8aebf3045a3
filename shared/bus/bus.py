"""A supervised connection: what is subscribed stays subscribed, whatever NATS does.

The client reconnects by itself after a lost connection; but most protocol errors close it
for good. `Bus` then builds a new client and subscribes everything again.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping

import nats.errors
from nats.js import JetStreamContext

from shared.bus.cancelling import cancellable
from shared.bus.client import Client, ServerFacts
from shared.bus.message import BusMessage, Handler
from shared.bus.options import CONNECT_TIMEOUT_S, RECONNECT_WAIT_S, client_options
from shared.bus.refusals import PermissionViolations
from shared.bus.service import MicroService
from shared.bus.subscription import Subscription
from shared.errors import BusError, BusUnreachable, NoResponders, PayloadTooLarge, RequestTimedOut
from shared.settings.nats import NatsSettings

logger = logging.getLogger(__name__)

_REBUILD_WAIT_S = 0.5
_JETSTREAM_S = 2.0


class Bus:
    """One connection to NATS. Make it with `Bus.connect`."""

    def __init__(self, settings: NatsSettings, *, name: str, inbox_prefix: str = "_INBOX") -> None:
        self._options = client_options(settings, name=name, inbox_prefix=inbox_prefix)
        self._client = Client()
        self._attached: set[Subscription | MicroService] = set()
        self._last_error: Exception | None = None
        self._refusals = PermissionViolations()
        self._closing = False
        self._rebuilding: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._found = asyncio.Event()
        self._echoes: dict[bytes, asyncio.Event] = {}
        self._echo: Subscription | None = None
        self._echo_subject = ""
        self.on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self.connections = 0
        """How often a connection was made; what was sent around a change may be lost."""

    @classmethod
    async def connect(
        cls,
        settings: NatsSettings,
        *,
        name: str,
        inbox_prefix: str = "_INBOX",
        wait_s: float | None = None,
    ) -> "Bus":
        """Connect, trying again until `wait_s` has passed (None: for as long as it takes).

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
                    logger.warning("%s; trying again", bus._describe(error))
                    warned = True
            await asyncio.sleep(RECONNECT_WAIT_S)

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The largest message, in bytes, that the server takes."""
        return self._client.max_payload

    @property
    def server_url(self) -> str:
        """The server in use, without credentials; empty while disconnected."""
        url = self._client.connected_url
        return f"{url.scheme}://{url.hostname}:{url.port}" if url else ""

    @property
    def server_facts(self) -> ServerFacts:
        """What the server that was connected to last says of itself."""
        return self._client.server_facts

    def jetstream(self) -> JetStreamContext:
        """Of the connection as it is now; for `shared.bus` alone."""
        return self._client.jetstream(timeout=_JETSTREAM_S)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def wait_lost(self) -> None:
        """Return once the connection is gone (at once where it is)."""
        await self._lost.wait()

    async def wait_connected(self) -> None:
        """Return once the connection is there (at once where it is)."""
        await self._found.wait()

    async def publish(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Put a message into the connection's buffer.

        Raises:
            PayloadTooLarge: the server would refuse it.
            BusError: the connection is closed, or down with a full buffer.
        """
        try:
            await self._client.publish(subject, payload, reply=reply)
        except nats.errors.MaxPayloadError:
            raise PayloadTooLarge(
                f"{len(payload)} bytes for {subject}; the server takes {self.max_payload}"
            ) from None
        except nats.errors.Error as error:
            raise BusError(f"publish to {subject}: {error or type(error).__name__}") from None

    def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """As `publish`, at once: also where much waits in the buffer.

        Raises:
            PayloadTooLarge: the server would refuse it.
            BusError: there is no connection.
        """
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(
                f"{len(payload)} bytes for {subject}; the server takes {self.max_payload}"
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
    ) -> BusMessage:
        """Publish and wait for one answer.

        Raises:
            NoResponders: nobody subscribes to `subject`.
            RequestTimedOut: no answer within `timeout_s`.
            NotPermitted: the server does not let this user ask that.
            PayloadTooLarge, BusError: as `publish`.
        """
        try:
            async with self._refusals.watched(subject):
                with cancellable():
                    msg = await self._client.request(
                        subject,
                        payload,
                        timeout=timeout_s,
                        headers=dict(headers) if headers else None,
                    )
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody answers on {subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise RequestTimedOut(f"no answer on {subject} within {timeout_s:g} s") from None
        except nats.errors.MaxPayloadError:
            raise PayloadTooLarge(f"{len(payload)} bytes for {subject}") from None
        except nats.errors.Error as error:
            raise BusError(f"request to {subject}: {error or type(error).__name__}") from None
        return BusMessage(msg.subject, msg.reply, msg.data)

    async def request_many(
        self, subject: str, payload: bytes, *, wait_s: float
    ) -> list[BusMessage]:
        """Publish and collect what is answered within `wait_s`; empty when nobody listens.

        Raises:
            NotPermitted: the server does not let this user ask that.
            PayloadTooLarge, BusError: as `publish`.
        """
        answers: list[BusMessage] = []
        nobody = asyncio.Event()

        async def collect(message: BusMessage) -> None:
            if message.no_responders:
                nobody.set()
            else:
                answers.append(message)

        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox, collect)
        try:
            async with self._refusals.watched(subject):
                await self.publish(subject, payload, reply=inbox)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await nobody.wait()
        finally:
            await subscription.unsubscribe()
        return answers

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Call `handler` for each message, one after another, until unsubscribed.

        Raises:
            BusError: the connection is closed.
        """
        subscription = Subscription(subject, queue, handler, self._forget)
        await self._attach(subscription)
        return subscription

    async def serve(self, service: MicroService) -> None:
        """Offer a NATS micro service, so that `nats micro ls/info/stats` finds it.

        Raises:
            BusError: the connection is closed.
        """
        await self._attach(service)

    def _forget(self, subscription: Subscription) -> None:
        """Do not subscribe this again after a reconnect."""
        self._attached.discard(subscription)

    async def flush(self, *, timeout_s: float = 2) -> None:
        """Wait until the server has everything that was published.

        A message to ourselves goes there and back. The client's own flush is not used: when
        its PONG comes after the timeout, the client stops reading for good (nats-py 2.16).

        Raises:
            NotPermitted: the server does not let this user have such inboxes.
            BusError: it did not come back in time.
        """
        if self._echo is None:
            self._echo_subject = self.new_inbox()
            self._echo = await self.subscribe(self._echo_subject, self._on_echo)
        mark = secrets.token_bytes(8)
        event = self._echoes[mark] = asyncio.Event()
        try:
            async with self._refusals.watched(self._echo_subject):
                await self.publish(self._echo_subject, mark)
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        except TimeoutError:
            raise BusError(f"the server did not answer within {timeout_s:g} s") from None
        finally:
            del self._echoes[mark]

    async def _on_echo(self, message: BusMessage) -> None:
        if event := self._echoes.get(message.payload):
            event.set()

    async def close(self) -> None:
        """Send what is buffered, then close. Safe to call twice."""
        self._closing = True
        if self._rebuilding is not None:
            self._rebuilding.cancel()
        if self._client.is_connected:
            with contextlib.suppress(BusError):
                await self.flush()
        with contextlib.suppress(nats.errors.Error):
            await self._client.close()

    async def _attach(self, what: Subscription | MicroService) -> None:
        self._attached.add(what)
        try:
            await what.attach(self._client)
        except nats.errors.ConnectionClosedError:
            if self._closing:
                self._attached.discard(what)
                raise BusError("the connection is closed") from None

    async def _open(self) -> None:
        client = Client()

        # A client that is still connecting, or was replaced, has no say.
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
        self._lost.clear()
        self._found.set()

    def _describe(self, error: BaseException) -> str:
        servers = ", ".join(_without_credentials(server) for server in self._options["servers"])
        cause = self._last_error or error
        reason = str(cause) or type(cause).__name__
        if "Authorization" in reason:
            reason += " (it does not know this key, token or password, or asks for one)"
        return f"cannot reach NATS at {servers}: {reason}"

    async def _on_error(self, error: Exception) -> None:
        if (subject := self._refusals.heard(str(error))) is not None:
            logger.warning("the NATS server does not permit this: %s", subject)
            return
        # After a refusal comes the end of the connection: that is not the reason.
        if "Authorization" not in str(self._last_error):
            self._last_error = error
        logger.debug("NATS: %r", error)

    def _on_disconnect(self) -> None:
        if self._lost.is_set():
            return
        self._found.clear()
        self._lost.set()
        if not self._closing:
            logger.warning("the connection to NATS is lost")

    async def _on_reconnect(self) -> None:
        self._lost.clear()
        self._found.set()
        logger.info("connected to NATS again, at %s", self.server_url)
        for callback in self.on_reconnect:
            await callback()

    async def _rebuild(self) -> None:
        logger.warning("the NATS client closed; building a new connection")
        while not self._closing:
            try:
                await self._open()
                for what in list(self._attached):
                    await what.attach(self._client)
                break
            except _CONNECT_ERRORS:
                await asyncio.sleep(_REBUILD_WAIT_S)
        if not self._closing:
            await self._on_reconnect()


_CONNECT_ERRORS = (OSError, TimeoutError, nats.errors.Error)


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.rpartition("://")
    return f"{scheme or 'nats'}://{rest.rpartition('@')[2]}"
