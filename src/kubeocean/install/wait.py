"""Waits until the manager runs, or until a worker is bound and its virtual nodes are Ready.

Waiting writes nothing and can be interrupted at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, BindingPhase, ClusterBinding
from kubeocean.api.conditions import READY
from kubeocean.api.group import APP_NAME, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicyPhase, PolicyStatus
from kubeocean.errors import NotFound
from kubeocean.install.apply import Applier, resource_of
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition

__all__ = [
    "State",
    "bound",
    "deployment_trouble",
    "manager_state",
    "manager_trouble",
    "rollout",
    "settle",
    "trouble",
    "worker_state",
]

_POLL_S: Final = 1.0
_PODS: Final = Resource("", "v1", "pods", "Pod", True, Untyped)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
_STARTING: Final = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class State:
    """A description of a Deployment's or binding's state, and whether the wait is over."""

    message: str
    done: bool = False


async def settle(
    look: Callable[[], Awaitable[State]],
    *,
    patience_s: float,
    clock: Clock,
    say: Callable[[str], None],
) -> State:
    """Poll `look` until its state is done or `patience_s` have passed; return the last state."""
    began = clock.monotonic()
    while True:
        state = await look()
        say(state.message)
        if state.done or clock.monotonic() - began >= patience_s:
            return state
        await clock.sleep(_POLL_S)


async def manager_state(applier: Applier, deployment: Json) -> State:
    """Return the state of the manager's Deployment."""
    meta = deployment["metadata"]
    stored = await applier.client.get(
        resource_of(deployment), meta["name"], meta["namespace"], keep_raw=True
    )
    return rollout(stored.content())


def rollout(deployment: Json) -> State:
    """Return how many replicas of a Deployment are updated and available.

    The rollout is not done while old pods run, because the available pods may be the old ones.
    """
    desired = deployment["spec"].get("replicas", 1)
    status = deployment.get("status") or {}
    observed = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    updated = status.get("updatedReplicas", 0) if observed else 0
    available = min(updated, status.get("availableReplicas", 0))
    message = f"{available} of {desired} replicas available"
    if old := max(status.get("replicas", 0) - updated, 0) if updated else 0:
        message += f", {old} old one{' remains' if old == 1 else 's remain'}"
    return State(message, available >= desired and not old)


async def manager_trouble(applier: Applier, domain: Domain) -> str:
    """Return why the manager does not run; "" if its Deployment is available."""
    return await deployment_trouble(applier, domain.manager, domain.system_namespace)


async def deployment_trouble(applier: Applier, name: str, namespace: str) -> str:
    """Return why a program of ours does not run; "" if its Deployment is available."""
    client = applier.client
    try:
        stored = await client.get(_DEPLOYMENTS, name, namespace, keep_raw=True)
    except NotFound:
        return f"Deployment {namespace}/{name} does not exist"
    state = rollout(stored.content())
    if state.done:
        return ""
    selector = f"{APP_NAME}={name}"
    pods = await client.list(_PODS, namespace, labels=selector, keep_raw=True)
    return trouble(stored.content(), [each.content() for each in pods.items]) or state.message


def trouble(deployment: Json, pods: Iterable[Json]) -> str:
    """Return why pods of a Deployment do not run, from the first pod with a reason; "" if none."""
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        for condition in status.get("conditions") or ():
            if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                return _why(f"pod {name} is not scheduled", condition)
        for container in status.get("containerStatuses") or ():
            waiting = container.get("state", {}).get("waiting")
            if waiting and waiting.get("reason") not in _STARTING:
                return _why(f"pod {name} waits", waiting)
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            return _why("no pod could be created", condition)
        if (condition["type"], condition["status"]) == ("Progressing", "False"):
            return _why("the rollout does not progress", condition)
    return ""


def _why(subject: str, status: Json) -> str:
    return ": ".join(filter(None, (subject, status.get("reason"), status.get("message"))))


async def worker_state(
    name: str, computing: Applier, worker: Applier, *, domain: Domain, lends: bool
) -> State:
    """Return the state of a binding; with `lends`, its virtual nodes have to be Ready, too."""
    binding = await computing.client.get(CLUSTER_BINDINGS, name)
    labels = f"{domain.managed_by}={domain.product},{domain.cluster_binding}={label_value(name)}"
    nodes = (await computing.client.list(NODES, labels=labels)).items
    try:
        policies = (await worker.client.list(RESOURCE_LEASING_POLICIES)).items
    except NotFound:
        policies = []
    statuses = {each.name: each.status for each in policies if each.spec.cluster == name}
    return bound(binding, nodes, statuses, lends=lends)


def bound(
    binding: ClusterBinding,
    nodes: Iterable[Node],
    policies: Mapping[str, PolicyStatus],
    *,
    lends: bool,
) -> State:
    """Return the state of a binding, its virtual nodes and its policies.

    With `lends`, the wait is over only when the policy of the binding's name lends nodes.
    """
    if binding.status.phase != BindingPhase.READY:
        condition = find_condition(binding.status.conditions, READY)
        why = f": {condition.message}" if condition is not None else ""
        return State(f"the binding is {binding.status.phase or 'new'}{why}")
    if not lends and not policies:
        message = "the binding is Ready, and lends nothing yet: give --lease or --between"
        return State(message, done=True)
    if not lends:
        message = f"the binding is Ready; its lending is set by {_named(policies)}"
        return State(message, done=True)
    policy = policies.get(binding.name, PolicyStatus())
    if policy.phase == PolicyPhase.INACTIVE:
        opens = f" until {policy.next_transition_time}" if policy.next_transition_time else ""
        return State(f"the binding is Ready; the policy's window is closed{opens}", done=True)
    vnodes = list(nodes)
    ready = sum(_is_ready(node) for node in vnodes)
    all_ready = bool(vnodes) and ready == len(vnodes)
    return State(f"{ready} of {len(vnodes)} virtual nodes are Ready", all_ready)


def _named(policies: Iterable[str]) -> str:
    names = sorted(policies)
    return f"{'policy' if len(names) == 1 else 'policies'} {', '.join(names)} of the worker"


def _is_ready(node: Node) -> bool:
    condition = find_condition(node.status.conditions, READY)
    return condition is not None and condition.status == "True"
