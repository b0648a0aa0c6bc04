"""Dialling: the candidates of an address, each begun a moment after the one before, until one of them proves itself.

A candidate may lead to the wrong machine, since many networks use the same private addresses. So the first that
connects does not win, but the first that knows the run's secret. The others are then dropped before they have been sent
a proof.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from orchestra.errors import (
    AuthenticationFailed,
    HandshakeError,
    NobodyListens,
    OrchestraError,
    Unreachable,
    VersionMismatch,
)
from orchestra.wire.addresses import candidates_of
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.base import Connection
from orchestra.wire.transports.registry import is_exposed, transport_for
from orchestra.wire.transports.tunnel import HEAD_START_S

T = TypeVar("T")

STAGGER_S = 0.25
"""Time between the beginnings of two candidates, unless the one before fails earlier."""
TUNNEL = "tunnel://"
"""The scheme of addresses that are tried after the others have had a head start."""
BACKOFF_S = 0.02
"""The pause before a broken connection is replaced; doubled after each failed attempt, and jittered."""
BACKOFF_MAX_S = 1.0
JOIN_BACKOFF_MAX_S = 2.0
"""The longest pause between attempts to join a run, before its jitter."""
DIAL_S = 3.0
"""Seconds that one attempt to connect may take."""
_TELLING = (VersionMismatch, AuthenticationFailed, HandshakeError)
"""Errors of a candidate that say more than that nothing answers there, the most telling first."""

Claim = Callable[[], bool]
"""Called once a candidate has proved itself; returns False if another one has before."""
Attempt = Callable[[str, Claim], Coroutine[Any, Any, None]]
"""Connects to a candidate, claims the right to go on once it has proved itself, and goes on."""


def backoff(settings: LinkSettings, attempts: int, most: float | None = None) -> float:
    """Return the seconds to pause after `attempts` failed attempts: doubled each time up to `most`, ± 50 %."""
    jitter = 0.5 + int.from_bytes(settings.entropy(4), "little") / 2**32
    return float(min(BACKOFF_S * 2 ** min(attempts, 20), most or BACKOFF_MAX_S) * jitter)


async def dial(settings: LinkSettings, address: str) -> Connection:
    """Return a new connection to the process that listens at `address`, a single candidate.

    Raises:
        Unreachable: there is none, or it does not answer in time.
        HandshakeError: it is plain TCP beyond this host, which the settings do not allow.
    """
    if is_exposed(address) and not settings.unencrypted:
        raise HandshakeError(f"{address} is plain TCP beyond this host; `unencrypted` allows it")
    try:
        async with asyncio.timeout(DIAL_S):
            return await transport_for(address, settings.tls).dial(address)
    except TimeoutError:
        raise Unreachable(f"no process answers at {address} within {DIAL_S:g} s") from None


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Dialler:
    """Dials for the links of a node."""

    def __init__(self, settings: LinkSettings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._reasons: dict[str, str] | None = None
        """The last failure of each candidate, while this node joins its run."""

    async def first(
        self, address: str, reached: str, attempt: Callable[[str, Claim], Coroutine[Any, Any, None]]
    ) -> str:
        """Try the candidates of `address` until one proves itself, and return that one.

        Args:
            address: the candidates, best first.
            reached: the one that the same process was reached at before, which comes first; empty if there is none.
                If no process listens there, that process is gone.
            attempt: tries one candidate.

        Raises:
            HandshakeError, Unreachable: all have failed. The error is of the most telling kind.
        """
        candidates = candidates_of(address)
        if len(candidates) == 1:
            try:
                await attempt(candidates[0], lambda: True)
            except OrchestraError as error:
                self._note(candidates[0], error)
                raise
            return candidates[0]
        race = _Race(sorted(candidates, key=lambda candidate: candidate != reached), attempt)
        try:
            return await race.run(reached, self._note)
        finally:
            await cancel_all(*race.tasks)

    async def check(self, address: str) -> None:
        """Check that a process listens at one of the candidates of `address`.

        Raises:
            NobodyListens: none does.
            Unreachable, HandshakeError: it is not known.
        """

        async def attempt(candidate: str, claim: Claim) -> None:
            (await dial(self._settings, candidate)).abort()
            claim()

        await self.first(address, "", attempt)

    async def join(self, connect: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Return what `connect` returns; call it again until it succeeds, for at most `timeout_s`.

        Each distinct reason of a failure is logged once. A node that is turned away tries again.

        Raises:
            Unreachable: no attempt has succeeded in time. The text has the last reason for each candidate.
            HandshakeError: the process that answers belongs to another run, or has another version.
        """
        if not timeout_s:
            return await connect()
        self._reasons = {}
        try:
            async with asyncio.timeout(timeout_s):
                for attempts in itertools.count():
                    try:
                        return await connect()
                    except Unreachable:
                        await asyncio.sleep(backoff(self._settings, attempts, JOIN_BACKOFF_MAX_S))
        except TimeoutError:
            reasons = "; ".join(dict.fromkeys(self._reasons.values())) or "nothing has answered yet"
            raise Unreachable(f"the run was not joined within {timeout_s:g} s: {reasons}") from None
        finally:
            self._reasons = None
        raise AssertionError("unreachable")

    def _note(self, candidate: str, error: OrchestraError) -> None:
        """Log why an attempt to join by a candidate has failed, unless the same was logged before."""
        if self._reasons is None:
            return
        if str(error) not in self._reasons.values():
            self._log.warning("not joined yet", reason=str(error))
        self._reasons[candidate] = str(error)


class _Race:
    """The attempts at all candidates of an address."""

    def __init__(self, candidates: list[str], attempt: Attempt) -> None:
        self.tasks: dict[asyncio.Task[None], str] = {}
        """The attempts that are under way, and the candidate of each."""
        self._waiting = sorted(candidates, key=lambda candidate: candidate.startswith(TUNNEL))
        self._attempt = attempt
        self._winner = ""
        self._began = asyncio.get_running_loop().time()

    async def run(self, reached: str, note: Callable[[str, OrchestraError], None]) -> str:
        """Return the candidate that has won, once its attempt is over; see `Dialler.first`."""
        failures: dict[str, OrchestraError] = {}
        while self.tasks or (self._waiting and not self._winner):
            done, _ = await asyncio.wait(self.tasks, timeout=self._begin_next(), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                candidate, error = self.tasks.pop(task), task.exception()
                if error is None:
                    return candidate
                if candidate == self._winner or not isinstance(error, OrchestraError):
                    raise error
                note(candidate, error)
                failures[candidate] = error
                if candidate == reached and isinstance(error, NobodyListens):
                    raise error
        raise _combined(failures)

    def _begin_next(self) -> float | None:
        """Begin the next attempt if it is due; return the time to wait for the one after it, None for ever."""
        if not self._waiting or self._winner:
            return None
        now = asyncio.get_running_loop().time()
        delayed = self._waiting[0].startswith(TUNNEL) and bool(self.tasks)
        if not delayed or now - self._began >= HEAD_START_S:
            candidate = self._waiting.pop(0)
            attempt = self._attempt(candidate, partial(self._claim, candidate))
            task = asyncio.get_running_loop().create_task(attempt, name=f"dial {candidate}")
            self.tasks[task] = candidate
        if not self._waiting:
            return None
        if self._waiting[0].startswith(TUNNEL):
            return max(HEAD_START_S - (now - self._began), 0.0)
        return STAGGER_S

    def _claim(self, candidate: str) -> bool:
        self._winner = self._winner or candidate
        return self._winner == candidate


def _combined(failures: Mapping[str, OrchestraError]) -> OrchestraError:
    """Return one error for the failures of all candidates."""
    text = "; ".join(dict.fromkeys(map(str, failures.values())))
    errors = failures.values()
    for kind in _TELLING:
        if any(isinstance(error, kind) for error in errors):
            return kind(text)
    return (NobodyListens if all(isinstance(error, NobodyListens) for error in errors) else Unreachable)(text)
