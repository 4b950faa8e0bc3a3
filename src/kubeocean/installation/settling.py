"""Settling: from objects that were made to programs that run and nodes that are Ready.

Nothing here changes anything; who stops waiting has lost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, BindingPhase, ClusterBinding
from kubeocean.api.conditions import READY
from kubeocean.api.group import Domain
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
from kubeocean.runtime.objects import Json, find_condition

__all__ = ["State", "bound", "manager_state", "rollout", "settle", "worker_state"]

_LOOK_S: Final = 1.0


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


# A worker


async def worker_state(
    name: str, computing: Applier, worker: Applier, *, domain: Domain, lends: bool
) -> State:
    """Whether what is bound under a name is there; `lends`: with nodes of it."""
    binding = await computing.client.get(CLUSTER_BINDINGS, name)
    labels = f"{domain.managed_by}={domain.product},{domain.cluster_binding}={label_value(name)}"
    nodes = (await computing.client.list(NODES, labels=labels)).items
    try:
        policy = (await worker.client.get(RESOURCE_LEASING_POLICIES, name)).status
    except NotFound:
        policy = PolicyStatus()
    return bound(binding, nodes, policy, lends=lends)


def bound(
    binding: ClusterBinding, nodes: Iterable[Node], policy: PolicyStatus, *, lends: bool
) -> State:
    """What there is to say of a binding, its nodes and its lease."""
    if binding.status.phase != BindingPhase.READY:
        condition = find_condition(binding.status.conditions, READY)
        why = f": {condition.message}" if condition is not None else ""
        return State(f"the binding is {binding.status.phase or 'new'}{why}")
    if not lends:
        return State("the binding is Ready; policies of the worker say what is lent", done=True)
    if policy.phase == PolicyPhase.INACTIVE:
        opens = f" until {policy.next_transition_time}" if policy.next_transition_time else ""
        return State(f"the binding is Ready; the lease's window is closed{opens}", done=True)
    there = list(nodes)
    ready = sum(_is_ready(node) for node in there)
    all_ready = bool(there) and ready == len(there)
    return State(f"{ready} of {len(there)} virtual nodes are Ready", all_ready)


def _is_ready(node: Node) -> bool:
    condition = find_condition(node.status.conditions, READY)
    return condition is not None and condition.status == "True"
