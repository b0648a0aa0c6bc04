"""StarCraft II itself, through the StarCraft challenge (oxwhirl/smac), where both are installed.

Each copy is a game in its own process. All of them step at once, but a step ends with the slowest: the batched
interface is in lock-step. B copies, A agents, O observation size, S state size, U actions.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from operator import index
from pathlib import Path
from time import monotonic
from typing import Any

import msgpack
import numpy as np
import structlog
from numpy.typing import NDArray

from components.envs.base import Env, EnvSpec, are_available, check_integers, check_mask, not_available
from orchestra import UsageError

_GAME = Path(__file__).with_name("smac_game.py")
_TRIES = 3
_CLOSING_S = 5.0
_ANSWER_LIMIT = 1 << 26  # bytes; the largest map's is a thousandth of that

log = structlog.get_logger("smac")


class GameFailed(RuntimeError):
    """A game could not be started, or not again, after several tries."""


class _Trouble(Exception):
    """One game crashed, hung, or answered nonsense."""


class Smac(Env):
    """B games of StarCraft II on a SMAC map.

    A game that crashes, hangs or answers nonsense is killed and another started in its place. Its episode is
    dropped: `failed_copies()` names such copies, which stand at the start of another episode. `restarts` and
    `episodes_lost` count. Games end with this process, however it ends.

    Args:
        map_name: as in SMAC, `8m`.
        n_envs: how many games, B.
        seed: of the games; each has its own, and another after a restart.
        step_timeout_s: a step that takes longer hangs.
        start_timeout_s: likewise for the start of an episode, with which the game itself may have to start.
        options: whatever else SMAC's `StarCraft2Env` takes.

    Raises:
        ValueError: a number out of its range.
        UsageError: the StarCraft challenge is not installed, or the package `smac` is another one.
        GameFailed: no game could be made.
    """

    def __init__(
        self,
        map_name: str,
        n_envs: int = 1,
        *,
        seed: int = 0,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 180.0,
        **options: Any,
    ) -> None:
        for name, value in (
            ("n_envs", n_envs),
            ("step_timeout_s", step_timeout_s),
            ("start_timeout_s", start_timeout_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} is {value!r}, must be positive")
        if seed < 0:
            raise ValueError(f"seed is {seed!r}, must be at least 0")
        self.n_envs = index(n_envs)
        self._options = {"continuing_episode": True, **options, "map_name": map_name}
        self._seed = seed
        self._step_s, self._start_s = step_timeout_s, start_timeout_s
        self.restarts = 0
        """Games started in place of one that failed."""
        self.episodes_lost = 0
        """Episodes that a failing game cut short."""
        self._closed = False
        self._started = np.zeros(n_envs, np.int64)
        self._games: list[_Game | None] = [None] * n_envs
        self._finalizer = weakref.finalize(self, _kill_all, self._games)
        sizes = self._made(0)
        self.spec = EnvSpec(
            name=map_name,
            n_agents=sizes["n_agents"],
            n_actions=sizes["n_actions"],
            obs_size=sizes["obs_shape"],
            state_size=sizes["state_shape"],
            episode_limit=sizes["episode_limit"],
        )
        self._allocate()
        self._over = np.ones(n_envs, np.bool_)
        self._lost = np.zeros(n_envs, np.bool_)

    def __repr__(self) -> str:
        return f"<Smac {self.spec.name} x {self.n_envs}>"

    def failed_copies(self) -> NDArray[np.bool_]:
        """Return which copies (B,) lost their episode in the last step; they are at the start of another."""
        return self._lost

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the copies that `which` (B,) names; in all of them without it.

        Raises:
            ValueError: `which` is not a mask of shape (B,).
            GameFailed: a game failed several times in a row.
        """
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        check_mask(which, self.n_envs)
        self._lost[:] = False
        self._begin(np.flatnonzero(which).tolist())

    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every copy: `actions` (B, A).

        Raises:
            ValueError: an action that is not available, another shape, or a copy whose episode is over; nothing has
                been stepped then.
            GameFailed: a game failed several times in a row.
        """
        self._check(actions)
        orders = {b: {"do": "step", "actions": actions[b].tolist()} for b in range(self.n_envs)}
        answers = self._ask(orders, self._step_s)
        self._lost[:] = False
        for b, answer in answers.items():
            try:
                if isinstance(answer, _Trouble):
                    raise answer
                if answer.get("lost"):
                    self._show(b, answer)
                    log.warning("the game crashed, SMAC has started another; the episode is dropped", copy=b)
                    self.restarts += 1
                else:
                    self._show(b, answer, played=True)
                    continue
            except _Trouble as trouble:
                self._replace(b, trouble)
            self._lost[b] = True
            self.episodes_lost += 1
        self._begin([b for b in np.flatnonzero(self._lost).tolist() if self._games[b] is None])

    def close(self) -> None:
        """End all games and their processes; a process that does not end is killed."""
        self._closed = True
        for game in self._games:
            if game is not None:
                game.say_goodbye()
        until = monotonic() + _CLOSING_S
        for game in self._games:
            if game is not None:
                game.wait(until - monotonic())
        self._finalizer()

    def _check(self, actions: NDArray[np.int64]) -> None:
        check_integers(actions, (self.n_envs, self.spec.n_agents))
        if self._over.any():
            raise ValueError(f"copy {np.argmax(self._over)} is over: reset it before stepping on")
        may = are_available(actions, self.available)
        if not may.all():
            b, i = np.argwhere(~may)[0]
            raise not_available(f"copy {b}, agent {i}: action {actions[b, i]}", self.available[b, i])

    def _begin(self, copies: list[int]) -> None:
        """Start episodes, with new games where needed; a game that fails to start is tried again."""
        for _ in range(_TRIES):
            for b in copies:
                if self._games[b] is None:
                    self._made(b)
            failed: dict[int, _Trouble] = {}
            for b, answer in self._ask({b: {"do": "reset"} for b in copies}, self._start_s).items():
                try:
                    if isinstance(answer, _Trouble):
                        raise answer
                    self._show(b, answer)
                except _Trouble as trouble:
                    failed[b] = trouble
                    self._replace(b, trouble)
            copies = list(failed)
            if not copies:
                return
        raise GameFailed(f"copy {copies[0]}: no game begins after {_TRIES} tries; the last: {failed[copies[0]]}")

    def _made(self, b: int) -> dict[str, int]:
        """Start the process of a copy; return the sizes of its environment."""
        if self._closed:
            raise GameFailed(f"copy {b}: this environment is closed")
        trouble: Exception | None = None
        for _ in range(_TRIES):
            entropy = np.random.SeedSequence(self._seed, spawn_key=(b, int(self._started[b])))
            self._started[b] += 1
            self._games[b] = _Game()
            options = self._options | {"seed": int(entropy.generate_state(1)[0]) >> 1}
            answer = self._ask({b: {"do": "make", "options": options}}, self._start_s)[b]
            if not isinstance(answer, _Trouble):
                if "refused" in answer:
                    self._end(b)
                    raise UsageError(str(answer["refused"]))
                sizes = answer.get("info")
                if isinstance(sizes, dict) and all(isinstance(size, int) and size > 0 for size in sizes.values()):
                    return sizes
                answer = _Trouble(f"it answered with nonsense: {answer!r:.200}")
            trouble = answer
            self._replace(b, trouble)
        raise GameFailed(f"copy {b}: no game can be made after {_TRIES} tries; the last: {trouble}")

    def _replace(self, b: int, trouble: _Trouble) -> None:
        """Make an end of a game that failed; another takes its place when it is needed."""
        log.warning("a game failed and is replaced; its episode is dropped", copy=b, reason=str(trouble))
        self.restarts += 1
        self._end(b)

    def _end(self, b: int) -> None:
        game, self._games[b] = self._games[b], None
        if game is not None:
            game.kill()

    def _ask(self, orders: Mapping[int, dict[str, Any]], timeout_s: float) -> "dict[int, dict[str, Any] | _Trouble]":
        """Send its request to every copy at once, and gather the answers that arrive in time."""
        answers: dict[int, dict[str, Any] | _Trouble] = {}
        until = monotonic() + timeout_s
        with selectors.DefaultSelector() as waiting:
            for b, order in orders.items():
                game = self._games[b]
                assert game is not None
                try:
                    game.send(order)
                except OSError as error:
                    answers[b] = _Trouble(f"it is gone ({error})")
                else:
                    waiting.register(game.channel, selectors.EVENT_READ, (b, game))
            while waiting.get_map():
                ready = waiting.select(max(until - monotonic(), 0.0))
                for key, _ in ready:
                    b, game = key.data
                    try:
                        answer: dict[str, Any] | _Trouble | None = game.read()
                    except _Trouble as trouble:
                        answer = trouble
                    if answer is not None:
                        answers[b] = answer
                        waiting.unregister(key.fileobj)
                if not ready and monotonic() >= until:
                    for key in list(waiting.get_map().values()):
                        answers[key.data[0]] = _Trouble(f"it hangs: no answer in {timeout_s:g} s")
                        waiting.unregister(key.fileobj)
        return answers

    def _show(self, b: int, answer: Mapping[str, Any], *, played: bool = False) -> None:
        """Write the answer of a copy into its rows, or nothing if any part of it is invalid."""
        arrays = {
            name: _array(answer.get(name), getattr(self, name)[b], name) for name in ("obs", "state", "available")
        }
        if not arrays["available"].any(axis=1).all():
            raise _Trouble("it answered with nonsense: an agent has no available action")
        reward = answer.get("reward", 0.0)
        flags = {name: answer.get(name, False) for name in ("terminated", "truncated", "won")}
        if not (isinstance(reward, float) and np.isfinite(reward)) or not all(
            isinstance(f, bool) for f in flags.values()
        ):
            raise _Trouble(f"it answered with nonsense: reward {reward!r}, {flags!r}")
        for name, array in arrays.items():
            getattr(self, name)[b] = array
        self.reward[b] = reward if played else 0.0
        for name, flag in flags.items():
            getattr(self, name)[b] = flag and played
        self._over[b] = self.terminated[b] or self.truncated[b]


def _array(data: Any, like: NDArray[Any], name: str) -> NDArray[Any]:
    if not isinstance(data, bytes) or len(data) != like.nbytes:
        found = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise _Trouble(f"it answered with nonsense: {name} is {found}, must be {like.nbytes} bytes")
    array = np.frombuffer(data, like.dtype).reshape(like.shape)
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise _Trouble(f"it answered with nonsense: {name} is not finite")
    return array


class _Game:
    """The process of a game, and the socket to it. It leads a process group, so that its children end with it."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs:
            # -P: or the files beside the script would be found in place of the packages that they adapt.
            words = [sys.executable, "-P", str(_GAME), str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 (no shell)
                words,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._data = bytearray()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        body = msgpack.packb(message)
        self.channel.sendall(len(body).to_bytes(4, "big") + body)

    def read(self) -> dict[str, Any] | None:
        """Read what there is; return an answer once it is whole."""
        try:
            part = self.channel.recv(1 << 20)
        except OSError as error:
            raise _Trouble(f"it is gone ({error})") from error
        if not part:
            raise _Trouble("it crashed")
        self._data += part
        if len(self._data) < 4:
            return None
        size = int.from_bytes(self._data[:4], "big")
        if size > _ANSWER_LIMIT:
            raise _Trouble(f"it answered with nonsense: an answer of {size} bytes")
        if len(self._data) < 4 + size:
            return None
        body = bytes(self._data[4 : 4 + size])
        del self._data[: 4 + size]
        try:
            answer = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise _Trouble(f"it answered with nonsense ({error})") from error
        if not isinstance(answer, dict):
            raise _Trouble(f"it answered with nonsense: {answer!r:.200}")
        if "error" in answer:
            raise _Trouble(str(answer["error"]))
        return answer

    def say_goodbye(self) -> None:
        with suppress(OSError):  # it may be gone already
            self.send({"do": "close"})

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, of which its end of the socket closing is the sign.

        The process is not reaped: while it is a zombie no other process gets its number, by which its group is killed.
        """
        self.channel.settimeout(max(timeout_s, 0.001))
        with suppress(OSError):
            while self.channel.recv(1 << 20):
                pass

    def kill(self) -> None:
        """End the process, and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.channel.close()


def _kill_all(games: list[_Game | None]) -> None:
    for b, game in enumerate(games):
        if game is not None:
            game.kill()
            games[b] = None
