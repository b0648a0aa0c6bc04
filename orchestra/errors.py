"""Every exception, by whose doing it was.

OrchestraError
├── UsageError                 you asked for something that cannot be: a flag, a file, a setting
│   └── SpawnRefused           another node does not start that actor: its class, its arguments, or its name
│   └── TraceError             a trace cannot be read, or does not hold what was asked for
│       ├── NotATrace          a file that is no trace, or none at all
│       ├── TraceVersion       a trace of another version of the format
│       ├── ValuesMissing      only digests were recorded where values are needed
│       └── CannotReplay       an actor cannot be rebuilt, or not as it was
│           └── ExperimentChanged  the experiment is not what it was when it was recorded
├── HandlerError               you wrote an actor or a message wrongly; raised when its class is defined
├── DeliveryError              a message could not be delivered
│   ├── MailboxFull            the recipient has no room now
│   ├── NotUnderstood          the recipient does not handle this type
│   └── Unreachable            nobody is, or is any longer, at that address
│       ├── ActorStopped       the actor stopped, perhaps before it answered
│       └── NobodyListens      the machine answers, but no process listens at that address
├── ActorFailed                an actor failed for good, and whoever is above it hears of it
├── AskFailed                  the handler of a request raised
├── AskCycle                   an ask went round in a circle and would have waited for itself
├── ReplayDiverged             an actor that is replayed does not do what was recorded
└── WireError                  the other side broke the protocol
    ├── FrameError             bytes that are no frame, or one over a limit
    ├── DecodeError            a frame that is no valid message
    └── HandshakeError         a peer that did not prove that it belongs to the run, or speaks another version
"""


class OrchestraError(Exception):
    """Anything that orchestra raises on purpose."""


class UsageError(OrchestraError):
    """A user's slip: shown as one line, with exit code 2."""


class TraceError(UsageError):
    """A trace cannot be read, or does not hold what was asked for."""


class NotATrace(TraceError):
    """There is no trace here, or the file is none."""


class TraceVersion(TraceError):
    """The trace is of another version of the format."""


class ValuesMissing(TraceError):
    """Only digests were recorded where values are needed, or nothing."""


class CannotReplay(TraceError):
    """An actor cannot be rebuilt from this trace, or what came to it is not all there."""


class ExperimentChanged(CannotReplay):
    """The experiment's file, its flags or the actor's class are not what they were when the trace was made."""


class SpawnRefused(UsageError):
    """An actor was not started on another node: unknown class, arguments that do not fit or travel, a name taken."""


class HandlerError(OrchestraError, TypeError):
    """An actor or message class that contradicts itself."""


class DeliveryError(OrchestraError):
    """A message was not delivered."""


class MailboxFull(DeliveryError):
    """`tell_nowait` found no room, where `tell` would have waited; or an actor told itself more than fits."""


class NotUnderstood(DeliveryError, TypeError):
    """The recipient's contract does not list this message."""


class Unreachable(DeliveryError):
    """No actor lives at the address, or its node is gone."""


class ActorStopped(Unreachable):
    """The actor stopped before the message was handled."""


class NobodyListens(Unreachable):
    """No process listens at the address, for certain: it has ended, or not yet begun."""


class ActorFailed(OrchestraError):
    """An actor failed for good; its cause is the exception, its text the actor's address and last deliveries."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(text)
        self.address = address


class AskFailed(OrchestraError):
    """The handler of a request raised; the text is the remote exception's."""


class AskCycle(OrchestraError):
    """An actor asked, directly or through others, itself while it was still handling the first request."""


class ReplayDiverged(OrchestraError):
    """An actor that is replayed does not do what was recorded. Its text says where, what, and what led to it."""


class WireError(OrchestraError):
    """The connection is closed when this is raised; nothing of the offending frame was delivered."""


class FrameError(WireError):
    """Not a frame of this protocol, or larger than allowed."""


class DecodeError(WireError):
    """The frame's contents are not what its type says."""


class HandshakeError(WireError):
    """The peer did not prove itself."""
