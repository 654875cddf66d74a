"""One client's socket: bytes to commands, effects to bytes."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar, cast

from lbg_broker.content_memory import ContentMemory
from lbg_broker.core.commands import Command, ConnectionLost, ConnectionOpened, Paused
from lbg_broker.core.effects import Deliver, Effect, PauseReading, Revoke, Send, SendContent
from lbg_broker.core.entities import Peer
from lbg_broker.core.machine import Broker
from lbg_broker.core.permissions import User, Users
from lbg_broker.core.state import State
from lbg_broker.handshake import Admitted, Handshake, Login, Refused
from lbg_broker.logins import Logins, LoginUnchecked, Outcome
from lbg_broker.settings import ServerSettings
from lbg_core.amqp import Connection as Wire
from lbg_core.amqp import (
    ConnectionFault,
    ConnectionState,
    EncodeError,
    Event,
    HeaderEvent,
    LocalProtocolError,
    MethodEvent,
    ReplyCode,
    Role,
)
from lbg_core.amqp.field_table import TAG_BYTES
from lbg_core.amqp.methods import (
    BasicRevoke,
    ChannelClose,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from lbg_core.counted_nouns import counted
from lbg_core.peers import PeerLog, network_of, printable

REVOKE_OVERHEAD_BYTES: Final = 512
"""More than a basic.revoke takes beside its tags: the frame, the method, the longest consumer tag."""


def send(wire: Wire, effect: Send) -> None:
    """Put a method in the output. Raises `EncodeError`, and `LocalProtocolError` unless the client closed the channel
    itself right behind the command that is refused: its close is answered."""
    try:
        wire.send(effect.channel, effect.method)
    except LocalProtocolError:
        if type(effect.method) is not ChannelClose:
            raise


def send_content(wire: Wire, effect: SendContent) -> None:
    """Put a method with content in the output. Raises `EncodeError`, `LocalProtocolError`."""
    wire.send_content(effect.channel, effect.method, effect.header, effect.body)


def deliver(wire: Wire, effect: Deliver) -> None:
    """Put a run of deliveries in the output. Raises `LocalProtocolError`."""
    write = wire.deliver
    channel, consumer_tag, tag = effect.channel, effect.consumer_tag, effect.first_tag
    fresh_from = tag + effect.redelivered
    for message in effect.messages:
        origin = message.origin
        write(
            channel,
            consumer_tag,
            tag,
            tag < fresh_from,
            origin.exchange,
            origin.routing_key,
            message.header,
            message.body,
        )
        tag += 1


def revoke(wire: Wire, effect: Revoke) -> None:
    """Put basic.revoke in the output, in frames of what the peer takes. Raises `LocalProtocolError`."""
    tags = effect.delivery_tags
    count = (wire.frame_max_bytes - REVOKE_OVERHEAD_BYTES) // TAG_BYTES
    for start in range(0, len(tags), count):
        part = tags[start : start + count]
        wire.send(effect.channel, BasicRevoke(effect.consumer_tag, effect.taken, part))


class ReadPause:
    """Reading from one socket stands still as long as there is a reason for it: "disk", "alarm", "output", "memory"."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reasons: set[str] = set()
        self._lenient_until = 0.0
        self._unsent_bytes = 0
        self._drops = False

    def begin(self, transport: asyncio.Transport) -> None:
        """The socket is there."""
        self._transport = transport

    def drop(self) -> None:
        """Read from now on whatever else there is a reason for: what comes is only dropped, up to the client's end."""
        for reason in list(self._reasons):
            self.resume(reason, lenient_until=0.0)
        self._drops = True

    def pause(self, reason: str) -> None:
        """Take nothing more from this client for now."""
        if self._drops:
            return
        transport = self._transport
        if not self._reasons and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: str, *, lenient_until: float) -> None:
        """The reason is gone; go on if it was the last. What the client sent meanwhile is still in the socket: it was
        not silent, we did not listen."""
        if reason not in self._reasons:
            return
        self._reasons.discard(reason)
        transport = self._transport
        if transport is not None and not self._reasons:
            self._lenient_until = lenient_until
            if not transport.is_closing():
                transport.resume_reading()

    def excuses_silence(self, now: float) -> bool:
        """True if silence proves nothing, because it is us who do not listen, or the client who takes what we sent.
        To be asked once a beat."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        drains, self._unsent_bytes = unsent < self._unsent_bytes, unsent
        is_ours = not self._reasons.isdisjoint(("disk", "alarm", "memory"))
        return is_ours or now < self._lenient_until or ("output" in self._reasons and drains)


log = logging.getLogger("lbg.broker")

LOOPBACK: Final = ("127.", "::1", "::ffff:127.")

AHEAD_MAX_BYTES: Final = 16 * 1024
"""Bytes that a client may send before its login is answered: a whole handshake, if it does not wait."""


PART_BYTES: Final = 512
TURN_S: Final = 0.02
"""Seconds of the event loop at a stretch for one session where a message may have hundreds of queues or patterns.
One to 10,000 queues takes 0.1 s, and one read may have a thousand of them."""


class SessionServer(Protocol):
    """The broker's process, as a session uses it: `lbg_broker.server.Server`."""

    settings: ServerSettings
    loop: asyncio.AbstractEventLoop
    broker: Broker
    users: Users
    logins: Logins
    peer_log: PeerLog
    content_memory: ContentMemory

    @property
    def state(self) -> State: ...
    @property
    def session_count(self) -> int: ...
    def admit(self, session: Session) -> bool: ...
    def forget(self, session: Session) -> None: ...
    def received(self, session: Session, events: list[Event], size: int) -> None: ...
    def apply(self, command: Command) -> None: ...
    def flush_soon(self, session: Session) -> None: ...


SessionT = TypeVar("SessionT", bound="Session")


def isolated(kind: type[SessionT]) -> type[SessionT]:
    """A session whose public methods let no exception out: a fault ends its session alone.

    The loop, the server, the store's results and the limits of memory reach a session by its public methods only, many
    of them in loops over several sessions. So do its own timers and futures. After a fault only its end is a step.
    """
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _step(method))
    return kind


def _step(method: Callable[..., Any]) -> Callable[..., Any]:
    is_end = method.__name__ == "connection_lost"

    @wraps(method)
    def step(session: Session, *arguments: Any) -> Any:
        if session._is_faulty and not is_end:
            return None
        try:
            return method(session, *arguments)
        except Exception as error:
            session._fault(error)
            return None

    return step


@isolated
class Session(asyncio.Protocol):
    """The life of one connection, from accept to closed socket."""

    def __init__(self, server: SessionServer, number: int) -> None:
        settings = server.settings
        self.number = number
        self.name = f"#{number}"
        self.admitted = False
        self._server = server
        self._wide = server.state.wide
        self._wire = Wire(
            Role.SERVER,
            frame_max_bytes=settings.frame_max_bytes,
            channel_max=settings.channel_max,
            heartbeat_s=settings.heartbeat_s,
            max_body_bytes=settings.message_max_bytes,
        )
        self._handshake: Handshake | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read_pause = ReadPause()
        self._partial_bytes = 0
        self._lingers = False
        self._is_faulty = False
        self._address = "unknown"
        self._login: asyncio.Future[Outcome] | None = None
        self._ahead = bytearray()
        self._unread = b""
        self._turn: asyncio.Handle | None = None

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server, loop = self._server, self._server.loop
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        transport = self._transport
        self._read_pause.begin(transport)
        limit = server.settings.write_buffer_bytes
        transport.set_write_buffer_limits(high=limit, low=limit // 4)
        address = transport.get_extra_info("peername") or ("unknown", 0)
        self._address = str(address[0])
        self.name = f"{address[0]}:{address[1]} #{self.number}"
        if not server.admit(self):
            self._report(
                f"refused: {counted(server.session_count, 'connection is', 'connections are')} open already"
            )
            transport.abort()
            return
        self._handshake = Handshake(self._wire, server.users, vhosts=server.broker.state.vhosts)
        self._timer = loop.call_later(server.settings.handshake_timeout_s, self.expire_handshake)

    def data_received(self, data: bytes) -> None:
        if self._turn is None and not self._wide:
            self._handle(data)
            return
        self._unread += data
        if self._turn is None:
            self.take_turn()

    def take_turn(self) -> None:
        """Handle what was read, which may take long: others have their turn after every `TURN_S`."""
        loop, unread, self._unread, self._turn = self._server.loop, self._unread, b"", None
        start, ends_at = 0, loop.time() + TURN_S
        while start < len(unread) and (not start or loop.time() < ends_at):
            end = start + PART_BYTES if self._wide else len(unread)
            self._handle(unread[start:end])
            start = end
        if start < len(unread):
            self._unread = unread[start:] + self._unread
            self.pause_reading("turn")
            self._turn = loop.call_soon(self.take_turn)
        else:
            self.resume_reading("turn")

    def _handle(self, data: bytes) -> None:
        if self._awaits_login():
            self._ahead += data
            if len(self._ahead) > AHEAD_MAX_BYTES:
                self.abort()
            return
        if self._is_over():
            return
        size = len(data)
        for events in self._wire.batches(data):
            if self.admitted:
                self._received(events, size)
            else:
                self._greeted(events)
            size = 0
            if self._is_over():
                return
            if self._awaits_login():
                if len(data) > AHEAD_MAX_BYTES:
                    self.abort()
                break
        partial_bytes = self._wire.partial_bytes if self.admitted else 0
        if partial_bytes != self._partial_bytes:
            self._partial_bytes = partial_bytes
            self._server.content_memory.update(self, partial_bytes, self._server.loop.time())
        if self._wire.has_output:
            self._server.flush_soon(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._login is not None:
            self._login.cancel()
        if self._turn is not None:
            self._turn.cancel()
        if exc is not None and self.admitted:
            log.info("%s: lost: %s", self.name, exc)
        try:
            self._server.forget(self)
        finally:
            try:
                self._leave()
            finally:
                self._wire.discard()

    def pause_writing(self) -> None:
        self._server.apply(Paused(self.number, True))

    def resume_writing(self) -> None:
        self.resume_reading("output")
        self._server.apply(Paused(self.number, False))

    @property
    def is_greeting(self) -> bool:
        """True if the client has not been let in yet."""
        return self._handshake is not None

    # --- the server's side -------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        """Put effects in the output; `flush` writes it."""
        wire = self._wire
        try:
            for effect in effects:
                if type(effect) is Deliver:
                    deliver(wire, effect)
                elif type(effect) is SendContent:
                    send_content(wire, effect)
                elif type(effect) is Revoke:
                    self._revoke(effect)
                elif type(effect) is Send:
                    if type(effect.method) is ConnectionClose:
                        self._closes(effect.method)
                    else:
                        send(wire, effect)
                elif type(effect) is PauseReading:
                    if effect.is_paused:
                        self.pause_reading("alarm")
                    else:
                        self.resume_reading("alarm")
        except EncodeError as error:
            self._fail(ReplyCode.INTERNAL_ERROR, str(error))
        except LocalProtocolError:
            # The client closed the channel or the connection in the same read; it awaits nothing but our
            # close-ok. Anything else would be a mistake of ours.
            if wire.state is ConnectionState.OPEN:
                log.exception("%s: an effect does not fit the state of the connection", self.name)
                self._fail(ReplyCode.INTERNAL_ERROR, "the state of this connection is inconsistent")
        self._server.flush_soon(self)

    def flush(self) -> None:
        """Write what there is, and end our side of the socket when all is said."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        output = self._wire.take_output()
        if output:
            transport.write(output)
            if transport.get_write_buffer_size() > self._server.settings.unsent_max_bytes:
                self.pause_reading("output")
        if self._wire.state is ConnectionState.CLOSED:
            self._linger()

    def pause_reading(self, reason: str) -> None:
        """Take nothing more from this client for now."""
        self._read_pause.pause(reason)

    def resume_reading(self, reason: str) -> None:
        """The reason is gone; go on if it was the last."""
        self._read_pause.resume(reason, lenient_until=self._server.loop.time() + self._wire.heartbeat_s)

    def has_input(self) -> bool:
        """True if the client has sent bytes that are not read yet. With TLS the socket does not show that: True."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_extra_info("ssl_object") is not None:
            return True
        waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        return any(waiting)

    def refuse_content(self, why: str) -> None:
        """End a connection whose incomplete messages use too much memory."""
        log.warning("%s: closed: %s", self.name, why)
        self._close(ReplyCode.RESOURCE_ERROR, why)

    def abort(self) -> None:
        """Drop the socket as it is."""
        if self._transport is not None:
            self._transport.abort()

    # --- inside ------------------------------------------------------------------------------------------------

    def _greeted(self, events: list[Event]) -> None:
        """Handles events before connection.open-ok, and after a close."""
        for event in events:
            if isinstance(event, ConnectionFault):
                self._report(event.reply_text)
                self._closing(event.await_close_ok)
                return
            assert isinstance(event, HeaderEvent | MethodEvent)
            if isinstance(event, MethodEvent) and isinstance(
                event.method, ConnectionClose | ConnectionCloseOk
            ):
                self._on_connection(event)
                return
            assert self._handshake is not None
            verdict = self._handshake.handle(event)
            self._server.flush_soon(self)
            if isinstance(verdict, Login):
                self._log_in(verdict)
            elif isinstance(verdict, Refused):
                self._report(f"refused: {verdict.reason}")
                self._closing(verdict.reports_refusal)
            elif isinstance(verdict, Admitted):
                self._enter(verdict)

    def _log_in(self, login: Login) -> None:
        """Nothing of the client is read further until the login is answered, which may take longer than a handshake."""
        logins, peer, address = self._server.logins, self.name, self._address
        if login.credentials is None:
            answer = logins.refuse("unknown mechanism or malformed response", peer=peer, address=address)
        else:
            loopback = address.startswith(LOOPBACK)
            answer = logins.check(*login.credentials, peer=peer, address=address, loopback=loopback)
        if self._timer is not None:
            self._timer.cancel()
        if answer.done():
            self.logged_in(answer)
        else:
            self._login = answer
            answer.add_done_callback(self.logged_in)

    def logged_in(self, answer: asyncio.Future[Outcome]) -> None:
        """The client's login is answered."""
        handshake, server = self._handshake, self._server
        if answer.cancelled() or handshake is None:
            return
        was_awaited, self._login = self._awaits_login(), None
        outcome = answer.result()
        server.flush_soon(self)
        if isinstance(outcome, User):
            handshake.logged_in(outcome)
            self._timer = server.loop.call_later(server.settings.handshake_timeout_s, self.expire_handshake)
            if was_awaited:
                ahead = bytes(self._ahead)
                self._ahead.clear()
                self._handle(ahead)
        elif isinstance(outcome, LoginUnchecked):
            self.abort()  # a refusal would mean that the password is wrong
        else:
            self._closing(handshake.refuse_login(outcome.reason).reports_refusal)

    def _report(self, line: str) -> None:
        """Log what anybody can cause, any number of times."""
        self._server.peer_log.warn(network_of(self._address), f"{self.name}: {printable(line)}")

    def _enter(self, verdict: Admitted) -> None:
        assert self._transport is not None
        address = self._transport.get_extra_info("peername") or ("unknown", 0)
        local = self._transport.get_extra_info("sockname") or ("unknown", 0)
        self.admitted = True
        self._handshake = None
        peer = Peer(
            f"{address[0]}:{address[1]} -> {local[0]}:{local[1]}",
            host=str(address[0]),
            port=int(address[1]),
            tls=self._transport.get_extra_info("ssl_object") is not None,
            client_properties=verdict.client_properties,
        )
        self._server.apply(ConnectionOpened(self.number, verdict.user, verdict.vhost, peer))
        if self._timer is not None:
            self._timer.cancel()
        self.beat()

    def _received(self, events: list[Event], size: int) -> None:
        """Events of an open connection: channel 0 is ours, the rest the core's."""
        first = events[0]
        if isinstance(first, ConnectionFault):
            log.warning("%s: %s", self.name, printable(first.reply_text))
            self.lose(first.await_close_ok)
            return
        if any(type(event) is MethodEvent and event.channel == 0 for event in events):
            for event in events:
                if isinstance(event, MethodEvent) and event.channel == 0:
                    self._on_connection(event)
            events = [
                event for event in events if isinstance(event, ConnectionFault | HeaderEvent) or event.channel
            ]
        self._server.received(self, events, size)

    def _on_connection(self, event: MethodEvent) -> None:
        match event.method:
            case ConnectionClose():
                self.lose(True)
                self._wire.send(0, ConnectionCloseOk())
                self._server.flush_soon(self)
            case ConnectionCloseOk():
                self._server.flush_soon(self)
            case ConnectionUpdateSecret() if self._wire.state is ConnectionState.OPEN:
                self._wire.send(0, ConnectionUpdateSecretOk())
                self._server.flush_soon(self)

    def lose(self, await_close_ok: bool) -> None:
        """The connection is over for the core; the socket lives until the close is answered."""
        self._leave()
        self._closing(await_close_ok)

    def _leave(self) -> None:
        if self.admitted:
            self.admitted = False
            self._server.apply(ConnectionLost(self.number))

    def _closing(self, await_close_ok: bool) -> None:
        """The socket ends when the close is answered, or in a while."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is None:
            return
        loop, limit_s = self._server.loop, self._server.settings.close_timeout_s
        self._timer = loop.call_later(limit_s, self.abort)
        self._read_pause.drop()
        if not await_close_ok:
            self.flush()
            self._linger()

    def _awaits_login(self) -> bool:
        """True while the client's login is being checked, or its refusal delayed."""
        return self._login is not None

    def _is_over(self) -> bool:
        """True if all is said on our side."""
        return self._lingers

    def _linger(self) -> None:
        """End our side, and drop what comes until the client ends its own or the time is over.

        A socket that is closed while the client still sends is reset, and what was said last is lost with it: the
        close-ok (AMQP 0-9-1, connection.close: what comes after it is discarded), or the reason of a close.
        """
        transport = self._transport
        if self._lingers or transport is None:
            return
        self._lingers = True
        if not transport.is_closing() and transport.can_write_eof():  # TLS has no end of one side
            transport.write_eof()

    def _closes(self, method: ConnectionClose) -> None:
        """The core ends the connection."""
        log.info("%s: closed: %s", self.name, printable(method.reply_text))
        self.admitted = False
        self._wire.send(0, method)
        self.resume_reading("alarm")  # its answer is to be read
        self._closing(await_close_ok=True)

    def _fail(self, code: ReplyCode, text: str) -> None:
        log.error("%s: %s", self.name, printable(text))
        self._close(code, text)

    def _close(self, code: ReplyCode, text: str) -> None:
        if self._wire.state is ConnectionState.OPEN:
            self._wire.send(0, ConnectionClose(code, f"{code.name} - {text}"[:255]))
        self._server.loop.call_soon(self.lose, True)

    def expire_handshake(self) -> None:
        """The time for a handshake is over."""
        self._report("no connection.open within the time limit")
        self.abort()

    def _fault(self, error: Exception) -> None:
        """End this session, in one of whose steps something failed: the socket, or what is a mistake of ours."""
        if self._is_faulty:
            return
        self._is_faulty = True
        if self._transport is not None:
            with suppress(Exception):
                self._transport.abort()
        self._server.loop.call_soon(self.connection_lost, None)  # whether or not the transport still does
        if not isinstance(error, OSError):
            log.error("%s: closed because of an internal error", self.name, exc_info=error)
        elif self.admitted:
            log.info("%s: lost: %s", self.name, error)
        else:
            self._report(f"lost: {error}")

    def _revoke(self, effect: Revoke) -> None:
        if effect.is_supported:
            revoke(self._wire, effect)
        if effect.taken:
            log.warning(
                "%s: revoked %d deliveries of queue '%s' from consumer '%s', which %s",
                *(self.name, len(effect.delivery_tags)),
                *(printable(effect.queue), printable(effect.consumer_tag)),
                "was notified" if effect.is_supported else "has no basic.revoke and continues with them",
            )

    def beat(self) -> None:
        """Send a heartbeat if one is due, and drop a client that is silent."""
        loop = self._server.loop
        pulse = self._wire.pulse(loop.time())
        if self._wire.has_output:
            self._server.flush_soon(self)
        excused = self._read_pause.excuses_silence(loop.time())
        if pulse.expired and not excused:
            log.warning("%s: silent for two heartbeats of %d s", self.name, self._wire.heartbeat_s)
            self.abort()
        elif pulse.next_at is not None:
            self._timer = loop.call_at(pulse.next_at, self.beat)
