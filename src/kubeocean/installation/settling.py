"""Settling: from objects that were made to programs that run and nodes that are Ready.

Nothing here changes anything; who stops waiting has lost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, BindingPhase, ClusterBinding
from kubeocean.api.conditions import READY
from kubeocean.api.group import APP_NAME, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.policy import (
    RESOURCE_LEASING_POLICIES,
    PolicyPhase,
    PolicyStatus,
)
from kubeocean.errors import NotFound
from kubeocean.installation.applying import Applier, resource_of
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition

__all__ = [
    "State",
    "bound",
    "manager_state",
    "manager_trouble",
    "rollout",
    "settle",
    "trouble",
    "worker_state",
]

_LOOK_S: Final = 1.0
_PODS: Final = Resource("", "v1", "pods", "Pod", True, Untyped)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
_BEGINNING: Final = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class State:
    """How far it is, in a line, and whether that is far enough."""

    said: str
    done: bool = False


async def settle(
    look: Callable[[], Awaitable[State]],
    *,
    patience_s: float,
    clock: Clock,
    say: Callable[[str], None],
) -> State:
    """Look until it is done, or for so long; the last thing that was seen."""
    began = clock.monotonic()
    while True:
        state = await look()
        say(state.said)
        if state.done or clock.monotonic() - began >= patience_s:
            return state
        await clock.sleep(_LOOK_S)


# The manager


async def manager_state(applier: Applier, deployment: Json) -> State:
    """Whether the manager runs as it should."""
    meta = deployment["metadata"]
    there = await applier.client.get(
        resource_of(deployment), meta["name"], meta["namespace"], keep_raw=True
    )
    return rollout(there.content())


def rollout(deployment: Json) -> State:
    """Of a Deployment: how many of its pods are new and available."""
    wanted = deployment["spec"].get("replicas", 1)
    status = deployment.get("status") or {}
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    updated = status.get("updatedReplicas", 0) if seen else 0
    available = min(updated, status.get("availableReplicas", 0))
    return State(f"{available} of {wanted} replicas available", available >= wanted)


async def manager_trouble(applier: Applier, domain: Domain) -> str:
    """Why the manager does not run, as far as its pods tell; empty if nothing is wrong."""
    client, namespace = applier.client, domain.system_namespace
    try:
        there = await client.get(_DEPLOYMENTS, domain.manager, namespace, keep_raw=True)
    except NotFound:
        return f"there is no Deployment {namespace}/{domain.manager}"
    state = rollout(there.content())
    if state.done:
        return ""
    selector = f"{APP_NAME}={domain.manager}"
    pods = await client.list(_PODS, namespace, labels=selector, keep_raw=True)
    return trouble(there.content(), [each.content() for each in pods.items]) or state.said


def trouble(deployment: Json, pods: Iterable[Json]) -> str:
    """Why pods of a Deployment do not run, by the first of them that tells."""
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        for condition in status.get("conditions") or ():
            if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                return _why(f"pod {name} runs nowhere", condition)
        for container in status.get("containerStatuses") or ():
            waiting = container.get("state", {}).get("waiting")
            if waiting and waiting.get("reason") not in _BEGINNING:
                return _why(f"pod {name} waits", waiting)
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            return _why("no pod could be made", condition)
    return ""


def _why(said: str, told: Json) -> str:
    return ": ".join(filter(None, (said, told.get("reason"), told.get("message"))))


# A worker


async def worker_state(
    name: str, computing: Applier, worker: Applier, *, domain: Domain, lends: bool
) -> State:
    """Whether what is bound under a name is there; `lends`: with nodes of it."""
    binding = await computing.client.get(CLUSTER_BINDINGS, name)
    labels = f"{domain.managed_by}={domain.product},{domain.cluster_binding}={label_value(name)}"
    nodes = (await computing.client.list(NODES, labels=labels)).items
    try:
        policies = (await worker.client.list(RESOURCE_LEASING_POLICIES)).items
    except NotFound:
        policies = []
    of_it = {each.name: each.status for each in policies if each.spec.cluster == name}
    return bound(binding, nodes, of_it, lends=lends)


def bound(
    binding: ClusterBinding,
    nodes: Iterable[Node],
    policies: Mapping[str, PolicyStatus],
    *,
    lends: bool,
) -> State:
    """What there is to say of a binding, its nodes and its leases; `lends`: that of its name."""
    if binding.status.phase != BindingPhase.READY:
        condition = find_condition(binding.status.conditions, READY)
        why = f": {condition.message}" if condition is not None else ""
        return State(f"the binding is {binding.status.phase or 'new'}{why}")
    if not lends and not policies:
        said = "the binding is Ready, and lends nothing yet: give --lease or --between"
        return State(said, done=True)
    if not lends:
        said = f"the binding is Ready; what it lends is said by {_named(policies)}"
        return State(said, done=True)
    policy = policies.get(binding.name, PolicyStatus())
    if policy.phase == PolicyPhase.INACTIVE:
        opens = f" until {policy.next_transition_time}" if policy.next_transition_time else ""
        return State(f"the binding is Ready; the lease's window is closed{opens}", done=True)
    there = list(nodes)
    ready = sum(_is_ready(node) for node in there)
    all_ready = bool(there) and ready == len(there)
    return State(f"{ready} of {len(there)} virtual nodes are Ready", all_ready)


def _named(policies: Iterable[str]) -> str:
    names = sorted(policies)
    return f"{'policy' if len(names) == 1 else 'policies'} {', '.join(names)} of the worker"


def _is_ready(node: Node) -> bool:
    condition = find_condition(node.status.conditions, READY)
    return condition is not None and condition.status == "True"
