"""Every exception of orchestra, by its cause. The docstrings say when each is raised.

OrchestraError
├── UsageError
│   ├── SpawnRefused
│   └── TraceError
│       ├── NotATrace
│       ├── TraceVersion
│       ├── ValuesMissing
│       └── CannotReplay
│           └── ExperimentChanged
├── CannotWrite
├── HostsMissing
├── HandlerError
├── DeliveryError
│   ├── MailboxFull
│   ├── NotUnderstood
│   └── Unreachable
│       ├── ActorStopped
│       └── NobodyListens
├── ActorFailed
├── AskFailed
├── AskCycle
├── ReplayDiverged
└── WireError
    ├── FrameError
    ├── DecodeError
    └── HandshakeError
        ├── AuthenticationFailed
        └── VersionMismatch
"""

from collections.abc import Iterator


class OrchestraError(Exception):
    """Base class of everything orchestra raises on purpose."""


class UsageError(OrchestraError):
    """A flag, file or setting that cannot be used. Commands print it as one line and exit with code 2."""


class CannotWrite(OrchestraError):
    """A file cannot be written: the disk is full, or the folder is read-only. Commands exit with code 74."""


class QueueStopped(OrchestraError):
    """A signal stopped a queue of runs. Its runs have stopped in order and can go on. Commands exit with code 75."""


class HostsMissing(OrchestraError):
    """Hosts that a run needs did not come in time, or a host did not find its run. Commands exit with code 69."""


class TraceError(UsageError):
    """A trace cannot be read, or lacks the requested record."""


class NotATrace(TraceError):
    """There is no trace at this path, or the file is not a trace."""


class TraceVersion(TraceError):
    """The trace has another version of the format."""


class ValuesMissing(TraceError):
    """Values are needed, but only digests or nothing was recorded."""


class CannotReplay(TraceError):
    """An actor cannot be rebuilt from this trace, or its record is incomplete."""


class ExperimentChanged(CannotReplay):
    """The experiment's file, its flags or the actor's class have changed since the trace was made."""


class SpawnRefused(UsageError):
    """Another node does not start an actor: unknown class, unsuitable arguments, or a name in use."""


class HandlerError(OrchestraError, TypeError):
    """An actor or message class contradicts itself. Raised when the class is defined."""


class DeliveryError(OrchestraError):
    """A message was not delivered."""


class MailboxFull(DeliveryError):
    """`tell_nowait` found no room where `tell` would wait, or an actor sent itself more messages than fit."""


class NotUnderstood(DeliveryError, TypeError):
    """The recipient does not handle this type of message."""


class Unreachable(DeliveryError):
    """There is no actor at the address, or its node is gone."""


class ActorStopped(Unreachable):
    """The actor stopped before it handled the message."""


class NobodyListens(Unreachable):
    """The machine answers, and no process listens at the address: it has ended, or not begun yet."""


class ActorFailed(OrchestraError):
    """An actor failed for good. The text has its address and last deliveries; the cause is its exception."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(text)
        self.address = address


class AskFailed(OrchestraError):
    """The handler of a request raised. The text is that of its exception."""


class AskCycle(OrchestraError):
    """An ask would wait for itself: the asked actor waits, directly or through others, for the asker."""


class ReplayDiverged(OrchestraError):
    """A replayed actor differs from its record. The text says where, how, and what led to it."""


class WireError(OrchestraError):
    """The other side broke the protocol. The connection is closed; nothing of the offending frame was delivered."""


class FrameError(WireError):
    """Bytes are not a frame of this protocol, or a frame is over a limit."""


class DecodeError(WireError):
    """The contents of a frame are not a valid message."""


class HandshakeError(WireError):
    """Two processes do not connect: one did not prove that it belongs to the run, or has another version."""


class AuthenticationFailed(HandshakeError):
    """A secret, a certificate or a join token is that of another run, or has expired. Commands exit with code 77."""


class VersionMismatch(HandshakeError):
    """Two processes have other versions of the protocol or of the code. Commands exit with code 76."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and the causes of each."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from causes(one)
        error = error.__cause__
