"""The process that holds one game of StarCraft II: run as a script by `components.envs.smac`, on a socket it inherits.

Stands alone: it imports neither torch nor this project, for there are many of it. A message is four bytes of length,
big-endian, and msgpack; arrays go as their bytes.
"""

import importlib
import os
import select
import signal
import socket
import sys
import threading
from typing import Any

import msgpack
import numpy as np

ORIGIN = "https://github.com/oxwhirl/smac"


def main() -> None:
    """Serve requests until `close`, or until the other end of the socket is gone."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    env: Any = None
    while (message := _received(channel)) is not None:
        try:
            if message["do"] == "make":
                make = _star_craft()
                if isinstance(make, str):
                    _send(channel, {"refused": make})
                    return
                env = make(**message["options"])
                _send(channel, {"info": _sizes(env)})
            elif message["do"] == "reset":
                env.reset()
                _send(channel, _frame(env))
            elif message["do"] == "step":
                _send(channel, _step(env, message["actions"]))
            else:
                env.close()
                return
        except Exception as error:  # the other end gets every failure as an answer
            _send(channel, {"error": f"{type(error).__name__}: {error}"})
            return


def _star_craft() -> Any:
    """The class of the StarCraft challenge, or why there is none."""
    try:
        module = importlib.import_module("smac.env")
        return module.StarCraft2Env
    except (ImportError, AttributeError) as error:
        try:
            importlib.import_module("smac")
        except ImportError:
            missing = "the StarCraft challenge is not installed"
        else:
            missing = f"the package 'smac' that is installed is not the StarCraft challenge ({error})"
        return (
            f"{missing}: uninstall any 'smac' of PyPI, which is an optimiser of hyper-parameters, run "
            f"`pip install git+{ORIGIN}.git`, and install StarCraft II and the SMAC maps as {ORIGIN} says"
        )


def _sizes(env: Any) -> dict[str, int]:
    info = env.get_env_info()
    return {name: int(info[name]) for name in ("state_shape", "obs_shape", "n_actions", "n_agents", "episode_limit")}


def _step(env: Any, actions: list[int]) -> dict[str, Any]:
    restarts = getattr(env, "force_restarts", 0)
    reward, ended, info = env.step(actions)
    if getattr(env, "force_restarts", 0) != restarts:
        # SMAC survived a crash of the game, and calls this an end like any other; it is none that a policy should see.
        env.reset()
        return _frame(env) | {"lost": True}
    cut = bool(info.get("episode_limit", False))
    outcome = {"terminated": bool(ended) and not cut, "truncated": cut, "won": bool(info.get("battle_won", False))}
    return _frame(env) | outcome | {"reward": float(reward)}


def _frame(env: Any) -> dict[str, Any]:
    return {
        "obs": np.asarray(env.get_obs(), np.float32).tobytes(),
        "state": np.asarray(env.get_state(), np.float32).tobytes(),
        "available": np.asarray(env.get_avail_actions(), np.bool_).tobytes(),
    }


def _end_with(channel: socket.socket) -> None:
    """End this process and the game's when the other side is gone, even while the game hangs."""
    poll = select.poll()
    poll.register(channel, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    poll.poll()
    _end()


def _end() -> None:
    """End this process and all that it started: they are a process group of their own.

    However it ends: to return from `main` would end the thread that watches the channel before it has done so.
    """
    os.killpg(0, signal.SIGKILL)


def _received(channel: socket.socket) -> Any:
    head = _exactly(channel, 4)
    body = head and _exactly(channel, int.from_bytes(head, "big"))
    return msgpack.unpackb(body) if body else None


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    body = msgpack.packb(message)
    channel.sendall(len(body).to_bytes(4, "big") + body)


if __name__ == "__main__":
    try:
        main()
    finally:
        _end()
