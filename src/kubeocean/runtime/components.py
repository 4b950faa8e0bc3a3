"""Protocols and adapters for the components that a service runs.

Any object with a coroutine method `run` is a component. A component may also have

- `ready`, a bool or a callable: whether the component is ready (`has_synced` is used if present);
- `stop`, plain or async: asks `run` to return. Without `stop`, `run` is cancelled.

A pair of a name and a coroutine function is a component, too. `Lifespan` gives a class with `start`
and `stop` an `async with` block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from kubeocean.errors import InvariantError

__all__ = ["Component", "Lifespan", "Runnable", "ServicePart", "components_of"]


class Runnable(Protocol):
    """Object with a coroutine method `run`."""

    async def run(self) -> None:
        """Work until stopped or cancelled."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a service: functions that run it, report its readiness, and stop it."""

    name: str
    run: Callable[[], Awaitable[None]]
    ready: Callable[[], bool] = _always
    stop: Callable[[], Awaitable[None] | None] | None = None


ServicePart: TypeAlias = Component | Runnable | tuple[str, Callable[[], Awaitable[None]]]


def components_of(parts: Iterable[ServicePart]) -> tuple[Component, ...]:
    """Return the parts of a service as components; parts with equal names are numbered."""
    components: list[Component] = []
    taken: dict[str, int] = {}
    for part in parts:
        component = _component(part)
        number = taken[component.name] = taken.get(component.name, 0) + 1
        numbered = component.name if number == 1 else f"{component.name}-{number}"
        components.append(replace(component, name=numbered))
    return tuple(components)


def _component(part: ServicePart) -> Component:
    if isinstance(part, Component):
        return part
    if isinstance(part, tuple):
        return Component(*part)
    run = getattr(part, "run", None)
    if not callable(run):
        raise InvariantError("a component of a service has no method `run`", component=part)
    name = getattr(part, "name", "") or type(part).__name__.lower()
    return Component(name, run, _readiness(part), getattr(part, "stop", None))


def _readiness(part: Runnable) -> Callable[[], bool]:
    def ready() -> bool:
        # Looked up at each call: most classes have a property of this name.
        ready = getattr(part, "ready", getattr(part, "has_synced", True))
        return bool(ready() if callable(ready) else ready)

    return ready


class Lifespan(ABC):
    """Object that runs from `start` to `stop`; `async with` calls both methods."""

    @abstractmethod
    async def start(self) -> None:
        """Start the component, and return when it runs."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the component, and return when it has ended."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
