"""Kinds: what we read of other objects to show it."""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.kinds import Taint
from kubeocean.runtime.objects import Condition, Object, Resource

__all__ = ["DEPLOYMENTS", "VIRTUAL_NODES", "Deployment", "VirtualNode"]


class _NodeSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class _NodeStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[Condition, ...] | None = None


class VirtualNode(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A virtual node."""

    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _DeploymentSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    replicas: int = 1


class _DeploymentStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    observed_generation: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class Deployment(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """One of our programs, as far as it tells how many replicas serve."""

    spec: _DeploymentSpec = msgspec.field(default_factory=_DeploymentSpec)
    status: _DeploymentStatus = msgspec.field(default_factory=_DeploymentStatus)

    @property
    def serving(self) -> int:
        """How many replicas are available, new or not."""
        return self.status.available_replicas

    @property
    def renewed(self) -> int:
        """How many of them are as the Deployment says now."""
        if self.status.observed_generation < self.metadata.generation:
            return 0
        return min(self.status.updated_replicas, self.status.available_replicas)


VIRTUAL_NODES: Final = Resource("", "v1", "nodes", "Node", False, VirtualNode)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)
