"""State of the rollout of one binding's syncers and proxiers.

A component is *ready* when its Deployment is applied and all replicas are updated and available.
Until then `reason` describes why not. A `failed` component needs a change by an administrator; its
running objects stay unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeocean.api.bindings import SecretNamespaces
from kubeocean.runtime.kinds import Deployment
from kubeocean.runtime.objects import find_condition

__all__ = [
    "ComponentPhase",
    "ComponentState",
    "RolloutResult",
    "component_state",
]


class ComponentPhase(StrEnum):
    """Phase of a component's rollout; the last three are failures."""

    READY = "Ready"
    ROLLING = "Rolling"  # replicas are not all updated and available
    TEMPLATE = "TemplateInvalid"  # the template cannot be rendered for this binding
    FOREIGN = "NameTaken"  # an object of that name belongs to another owner
    REFUSED = "Refused"  # the API server refused the object


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """Rollout of a binding's syncers or proxiers; the numbers are those of the Deployment."""

    phase: ComponentPhase
    desired: int = 0
    updated: int = 0
    ready: int = 0
    reason: str = ""  # a sentence; empty when ready

    @property
    def is_ready(self) -> bool:
        return self.phase is ComponentPhase.READY

    @property
    def failed(self) -> bool:
        """Whether the objects of the component could not be applied."""
        return self.phase not in (ComponentPhase.READY, ComponentPhase.ROLLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """Result of one rollout of a binding."""

    syncer: ComponentState
    proxier: ComponentState
    written: tuple[str, ...] = ()  # created, changed or deleted objects: kind and name
    adopted: tuple[str, ...] = ()  # objects of the earlier implementation among these
    secret_namespaces: SecretNamespaces = field(default_factory=SecretNamespaces)

    @property
    def failed(self) -> bool:
        """Whether a component failed, so that the rollout is retried later.

        The change that the rollout needs may cause no event.
        """
        return self.syncer.failed or self.proxier.failed


def component_state(
    deployment: Deployment | None, *, phase: ComponentPhase | None = None, reason: str = ""
) -> ComponentState:
    """Return the rollout state of a Deployment; `phase` and `reason` of a failure override it."""
    if deployment is None:
        return ComponentState(
            phase=phase or ComponentPhase.ROLLING, reason=reason or "no Deployment yet"
        )
    status = deployment.status
    reason = reason or _pending_reason(deployment)
    return ComponentState(
        phase=phase or (ComponentPhase.ROLLING if reason else ComponentPhase.READY),
        desired=deployment.desired,
        updated=status.updated_replicas if deployment.is_observed else 0,
        ready=status.available_replicas,
        reason=reason,
    )


def _pending_reason(deployment: Deployment) -> str:
    """Return why a Deployment is not rolled out yet; "" if it is."""
    name, status, desired = deployment.key, deployment.status, deployment.desired
    if deployment.deleting:
        return f"Deployment {name} is being deleted"
    if not deployment.is_observed:
        return f"Deployment {name} has changed; its controller has not observed that yet"
    for type_, bad in (("ReplicaFailure", "True"), ("Progressing", "False")):
        condition = find_condition(status.conditions, type_)
        if condition is not None and condition.status == bad:
            return f"Deployment {name}: {condition.reason}: {condition.message}"
    if status.updated_replicas < desired:
        return f"Deployment {name}: {status.updated_replicas} of {desired} replicas are updated"
    if status.replicas > status.updated_replicas:
        old = status.replicas - status.updated_replicas
        return f"Deployment {name}: {old} old replicas are not deleted yet"
    if status.available_replicas < desired:
        return f"Deployment {name}: {status.available_replicas} of {desired} replicas are available"
    return ""
