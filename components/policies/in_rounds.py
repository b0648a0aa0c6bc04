"""Policies that learn in rounds of steps."""

from typing import ClassVar

from components.policies.wrapped import WrappedPolicy


class InRounds(WrappedPolicy):
    """A wrapped policy that learns from each step of a round."""

    on_policy: ClassVar[bool] = True
    max_staleness: ClassVar[int | None] = 1
