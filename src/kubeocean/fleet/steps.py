"""Steps of a placement as conditions: a chain that ends at the first step that is not True.

Bindings, the entries of clusters in a placement's status, and placements all have the same chain;
which steps it has depends on how objects are written in members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from kubeocean.api.fleet.conditions import APPLY, REPORT_DIFF, Step
from kubeocean.api.fleet.strategies import ApplyStrategy, ApplyStrategyType
from kubeocean.runtime.objects import Condition, find_condition

__all__ = ["Judgement", "chain_of", "first_unfinished", "fresh", "settle", "shared", "walk"]

_MOST_SHARED: Final = 4096


class Judgement(NamedTuple):
    """Status, reason and message of a step's condition."""

    status: str
    reason: str
    message: str = ""


def chain_of(strategy: ApplyStrategy) -> tuple[Step, ...]:
    """Return the steps after scheduling for an apply strategy: apply, or ReportDiff."""
    return REPORT_DIFF if strategy.type == ApplyStrategyType.REPORT_DIFF else APPLY


def walk(
    chain: Sequence[Step],
    generation: int,
    judge: Callable[[Step], Judgement],
    *,
    prefix: str = "",
) -> tuple[Condition, ...]:
    """Return the conditions of a chain up to and including the first that is not True."""
    conditions: list[Condition] = []
    for step in chain:
        status, reason, message = judge(step)
        conditions.append(
            Condition(
                f"{prefix}{step.name}", status, reason, message, observed_generation=generation
            )
        )
        if status != "True":
            break
    return tuple(map(_shared, conditions))


def fresh(conditions: Iterable[Condition], type_: str, generation: int) -> Condition | None:
    """Return the condition of this type; None if absent, or about another generation."""
    condition = find_condition(conditions, type_)
    if condition is None or condition.observed_generation != generation:
        return None
    return condition


def first_unfinished(
    conditions: Iterable[Condition], types: Iterable[str], generation: int
) -> tuple[str, Condition | None] | None:
    """Return the first of the condition `types` that is not True; None if all are True.

    The type is returned with its condition, which is None if absent or about another generation.
    """
    conditions = tuple(conditions)
    for type_ in types:
        condition = fresh(conditions, type_, generation)
        if condition is None or condition.status != "True":
            return type_, condition
    return None


def settle(old: Iterable[Condition], new: Iterable[Condition], now: str) -> tuple[Condition, ...]:
    """Return the conditions `new`, with transition times of `old` where the status is the same."""
    before = {condition.type: condition for condition in old}

    def since(condition: Condition) -> str:
        earlier = before.get(condition.type)
        if earlier is None or earlier.status != condition.status:
            return now
        return earlier.last_transition_time or now

    return tuple(
        msgspec.structs.replace(condition, last_transition_time=since(condition))
        for condition in new
    )


def shared(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return equal conditions that share memory with equal ones of other objects.

    Thousands of bindings and Works have equal conditions, since many of them become available in
    the same second, and conditions are the larger part of a cached object.
    """
    return tuple(map(_shared, conditions))


@lru_cache(maxsize=_MOST_SHARED)
def _shared(condition: Condition) -> Condition:
    return condition
