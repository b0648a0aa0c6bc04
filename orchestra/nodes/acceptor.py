"""The accepting side of a node: the handshakes of accepted connections, and the refused connections."""

from structlog.typing import FilteringBoundLogger

from orchestra.errors import HandshakeError, Unreachable
from orchestra.wire.admission import Admission
from orchestra.wire.handshake import Admit, Handshake
from orchestra.wire.refusals import Refusals
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.base import Connection


class Acceptor:
    """Bounds the connections that have not proved themselves, and logs the refused ones.

    Args:
        settings: of the node's links.
        admit: finds the link for a dialer's hello.
        log: of the node.
    """

    def __init__(self, settings: LinkSettings, admit: Admit, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._admit = admit
        self._handshakes: dict[Handshake, None] = {}
        self._admission: Admission[Handshake] = Admission()
        self._refusals = Refusals(log)

    def accept(self, connection: Connection) -> None:
        """Begin the handshake of an accepted connection."""
        handshake = Handshake(self._settings, connection, admit=self._admit, over=self.over, progress=self._proceeds)
        if handshake.done.done():
            return  # the peer has hung up already
        self._handshakes[handshake] = None
        dropped = self._admission.add(handshake, connection.source)
        if dropped is not None:
            dropped.abort(HandshakeError(f"{dropped.peer} was silent for longest of too many connections"))

    def over(self, handshake: Handshake, error: Exception | None) -> None:
        """Forget a handshake that has ended, of an accepted connection or a dialled one."""
        self._handshakes.pop(handshake, None)
        self._admission.remove(handshake)
        if isinstance(error, HandshakeError):
            self._refusals.add(self._settings.clock.monotonic(), handshake.source, str(error))

    def abort(self, error: Unreachable) -> None:
        """End all handshakes of accepted connections."""
        for handshake in list(self._handshakes):
            handshake.abort(error)

    def sum_up(self, *, final: bool = False) -> None:
        """Log the number of refused connections that were not logged one by one, if it is time or `final`."""
        self._refusals.sum_up(self._settings.clock.monotonic(), final=final)

    def _proceeds(self, handshake: Handshake) -> None:
        if handshake.proven:
            self._admission.remove(handshake)
        else:
            self._admission.note_progress(handshake)
