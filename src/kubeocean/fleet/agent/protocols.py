"""Exchangeable parts of a member agent: the applier of Works, and providers of properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kubeocean.api.fleet.clusters import PropertyValue, ResourceUsage
from kubeocean.runtime.objects import Condition

__all__ = ["Applier", "Collection", "NewApplier", "PropertyProvider"]


class Applier(Protocol):
    """Applies the Works of the hub in the member while the member has joined."""

    async def run(self) -> None:
        """Apply Works until cancelled."""

    async def release_works(self) -> None:
        """Remove the finalizers from all Works; the applied objects stay.

        Only called when `run` has ended.
        """


NewApplier: TypeAlias = Callable[[], Applier]


@dataclass(frozen=True, slots=True)
class Collection:
    """Properties, resources and namespaces of a member at one time.

    `namespaces` is None where they are not collected. `conditions` appear in the status in their
    order; transition times and generations are filled in by the agent.
    """

    properties: Mapping[str, PropertyValue] = field(default_factory=dict)
    usage: ResourceUsage = field(default_factory=ResourceUsage)
    namespaces: Mapping[str, str] | None = None
    conditions: tuple[Condition, ...] = ()


class PropertyProvider(Protocol):
    """Source of a member's properties, built from a class whose constructor takes the client."""

    async def run(self) -> None:
        """Work in the background, such as keeping caches, until cancelled."""

    async def start(self) -> None:
        """Return when `collect` can be called. Called after `run`, again after a failed start."""

    async def collect(self) -> Collection:
        """Return the member's present properties, resources and namespaces."""
