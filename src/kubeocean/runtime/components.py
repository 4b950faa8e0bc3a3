"""Components: the parts that a service runs.

Anything with a coroutine method `run` is one. It may also have

- `ready`, a bool or a callable: whether it does its work yet (`has_synced` counts as such);
- `stop`, plain or async: asks `run` to return by itself. Without it, `run` is cancelled.

A pair of a name and a coroutine function is one too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from kubeocean.errors import InvariantError

__all__ = ["Component", "Part", "Runnable", "components_of"]


class Runnable(Protocol):
    """What can be run."""

    async def run(self) -> None:
        """Do the work until asked to stop, or cancelled."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a service: how to run it, ask whether it is ready, and stop it."""

    name: str
    run: Callable[[], Awaitable[None]]
    ready: Callable[[], bool] = _always
    stop: Callable[[], Awaitable[None] | None] | None = None


Part: TypeAlias = Component | Runnable | tuple[str, Callable[[], Awaitable[None]]]


def components_of(parts: Iterable[Part]) -> tuple[Component, ...]:
    """The parts as components; those that share a name are numbered."""
    found: list[Component] = []
    taken: dict[str, int] = {}
    for part in parts:
        component = _component(part)
        number = taken[component.name] = taken.get(component.name, 0) + 1
        numbered = component.name if number == 1 else f"{component.name}-{number}"
        found.append(replace(component, name=numbered))
    return tuple(found)


def _component(part: Part) -> Component:
    if isinstance(part, Component):
        return part
    if isinstance(part, tuple):
        return Component(*part)
    run = getattr(part, "run", None)
    if not callable(run):
        raise InvariantError("a component has nothing to run", component=part)
    name = getattr(part, "name", "") or type(part).__name__.lower()
    return Component(name, run, _readiness(part), getattr(part, "stop", None))


def _readiness(part: Runnable) -> Callable[[], bool]:
    def ready() -> bool:
        # Looked up each time: on most classes it is a property.
        said = getattr(part, "ready", getattr(part, "has_synced", True))
        return bool(said() if callable(said) else said)

    return ready
