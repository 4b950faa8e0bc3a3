"""Outcomes: what a reconciler may answer.

    Done()                    nothing is left to do until something changes
    After(seconds)            look again at that time, also if nothing changes
    Stuck(reason, message)    it cannot go on; somebody has to know and change something

Anything else that can happen to a reconciler is an exception. What follows from each answer (queue,
metric, log, hook) is decided in one place, `controller`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["After", "Done", "Outcome", "Stuck"]


@dataclass(frozen=True, slots=True)
class Done:
    """The world is as it should be."""


@dataclass(frozen=True, slots=True)
class After:
    """The world is as it should be until a time comes; a change still comes first."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stuck:
    """Trying again will not help by itself. `reason` is a CamelCase word, `message` a sentence."""

    reason: str
    message: str


Outcome: TypeAlias = Done | After | Stuck
