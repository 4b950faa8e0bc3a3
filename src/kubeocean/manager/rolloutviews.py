"""Rollouts, seen: how far the syncers and the proxiers of one binding have come.

A side is *ready* when the Deployment is as wanted and all of its replicas are new and available.
Until then `reason` says what is waited for; if the side is `failed`, somebody has to change
something, and nothing that ran before was touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.runtime.objects import Condition, Object, Resource, find_condition

__all__ = [
    "DEPLOYMENTS",
    "Deployment",
    "DeploymentSpec",
    "DeploymentStatus",
    "Rolled",
    "Side",
    "Standing",
    "side_of",
]


class DeploymentSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What is asked of a Deployment."""

    replicas: int | None = None


class DeploymentStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What became of it."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] | None = None


class Deployment(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Deployment; who needs the rest of it keeps the bytes."""

    spec: DeploymentSpec = msgspec.field(default_factory=DeploymentSpec)
    status: DeploymentStatus = msgspec.field(default_factory=DeploymentStatus)


DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)


class Standing(StrEnum):
    """Where a side is; the last three are failures."""

    READY = "Ready"
    ROLLING = "Rolling"  # replicas are on their way
    TEMPLATE = "TemplateInvalid"  # the template makes no object of this binding
    FOREIGN = "NameTaken"  # somebody else has an object of that name
    REFUSED = "Refused"  # the server did not take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The syncers, or the proxiers, of a binding; of a failed side the figures are what runs."""

    standing: Standing
    wanted: int = 0
    updated: int = 0
    ready: int = 0
    reason: str = ""  # a sentence; empty when ready

    @property
    def is_ready(self) -> bool:
        return self.standing is Standing.READY

    @property
    def failed(self) -> bool:
        """Whether the objects could not be made as wanted."""
        return self.standing not in (Standing.READY, Standing.ROLLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What one look at a binding's objects found and did."""

    syncer: Side
    proxier: Side
    written: tuple[str, ...] = ()  # what was created, changed or removed now: kind and name
    adopted: tuple[str, ...] = ()  # those of them that the earlier implementation had made

    @property
    def failed(self) -> bool:
        """Whether another try later is worth it although no event may come."""
        return self.syncer.failed or self.proxier.failed


def side_of(
    deployment: Deployment | None, *, standing: Standing | None = None, reason: str = ""
) -> Side:
    """Where a side is; `standing` and `reason` of a failure come first."""
    if deployment is None:
        return Side(standing=standing or Standing.ROLLING, reason=reason or "no Deployment yet")
    status = deployment.status
    wanted = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    seen = status.observed_generation >= deployment.metadata.generation
    said = reason or _waiting(deployment, wanted=wanted, seen=seen)
    found = standing or (Standing.ROLLING if said else Standing.READY)
    return Side(
        standing=found,
        wanted=wanted,
        updated=status.updated_replicas if seen else 0,
        ready=status.available_replicas,
        reason=said,
    )


def _waiting(deployment: Deployment, *, wanted: int, seen: bool) -> str:
    """What is still waited for."""
    name, status = deployment.key, deployment.status
    if deployment.deleting:
        return f"Deployment {name} is being deleted"
    if not seen:
        return f"Deployment {name} has changed; its controller has not looked yet"
    for type_, bad in (("ReplicaFailure", "True"), ("Progressing", "False")):
        said = find_condition(status.conditions, type_)
        if said is not None and said.status == bad:
            return f"Deployment {name}: {said.reason}: {said.message}"
    if status.updated_replicas < wanted:
        return f"Deployment {name}: {status.updated_replicas} of {wanted} replicas are new"
    if status.replicas > status.updated_replicas:
        old = status.replicas - status.updated_replicas
        return f"Deployment {name}: {old} old replicas are still there"
    if status.available_replicas < wanted:
        return f"Deployment {name}: {status.available_replicas} of {wanted} replicas are available"
    return ""
