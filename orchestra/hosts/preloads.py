"""Preloading: an actor class may load modules and data before the processes of its actors are forked."""

from typing import Any


class Preloads:
    """An actor class whose processes are forked from a template that has loaded what the actor needs.

    It is a base class beside `Actor`. Where processes are not forked, each of them loads everything itself.
    """

    @classmethod
    def preload(cls, *args: Any, **kwargs: Any) -> None:
        """Import and load what an actor of this class needs, given the planned arguments of its constructor.

        This runs in the template. It must start no thread and no process, and open no file or socket: the forked
        processes would share it. An exception is printed, and the processes load what is missing.
        """
        raise NotImplementedError
