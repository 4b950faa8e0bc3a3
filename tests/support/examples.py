"""Many examples at once, for tests that compare them with a server in one request."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["draw_many", "examples"]

T = TypeVar("T")


def examples(share: float, *, at_least: int = 1) -> int:
    """Return the number of examples for a property, scaled by its cost; thorough runs try more."""
    return max(at_least, round(share * settings().max_examples))


def draw_many(strategy: st.SearchStrategy[T], count: int, *, seeded: int = 1) -> list[T]:
    """Return about `count` examples; the same ones for the same seed."""
    drawn: list[T] = []

    @seed(seeded)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        drawn.append(example)

    collect()
    return drawn
