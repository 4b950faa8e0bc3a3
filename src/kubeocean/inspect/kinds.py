"""The kind Deployment, with the fields that show the state of our programs."""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.objects import Object, Resource

__all__ = ["DEPLOYMENTS", "Deployment"]


class _DeploymentSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    replicas: int = 1


class _DeploymentStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    observed_generation: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class Deployment(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """The Deployment of a manager, a syncer or a proxier."""

    spec: _DeploymentSpec = msgspec.field(default_factory=_DeploymentSpec)
    status: _DeploymentStatus = msgspec.field(default_factory=_DeploymentStatus)

    @property
    def serving(self) -> int:
        """The number of available replicas, of any generation."""
        return self.status.available_replicas

    @property
    def renewed(self) -> int:
        """The number of available replicas of the current generation."""
        if self.status.observed_generation < self.metadata.generation:
            return 0
        return min(self.status.updated_replicas, self.status.available_replicas)


DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)
