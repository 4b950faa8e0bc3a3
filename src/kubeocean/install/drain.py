"""Drains virtual nodes: cordons them, and evicts their pods as disruption budgets allow.

A cordoned node gets an annotation, so that `undo` uncordons only nodes that drain has cordoned.
Pods are evicted through the Eviction API; refused and failed evictions are repeated at growing
intervals, and do not delay other pods. Pods of DaemonSets stay, because their controller would
create them again. The syncer sets allocatable `pods` of a node that drain has cordoned to 0, so
that no scheduler binds pods to the node that tolerate the cordon. Pods that are bound nevertheless,
for example while the syncer does not run, are evicted at growing intervals. Pods without a
controller are evicted only with `force`; without `force`, a drain of nodes with such pods does
nothing. After an interrupted drain, nodes stay cordoned, and pods run or terminate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT, TRUE, Domain
from kubeocean.api.naming import label_value
from kubeocean.api.ownership import is_virtual_node_of
from kubeocean.errors import ApiError, ConfigError, Conflict, NotFound, TooManyRequests
from kubeocean.leasing.reclaim import EvictionAttempt, EvictionResult, PodAction
from kubeocean.leasing.report import counted
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Json, controller_of

__all__ = ["Drain", "Left", "bare", "to_evict"]

_POLL_S: Final = 1.0
_MAX_NAMED_PODS: Final = 10
_FIRST_RETURN_S: Final = 2.0  # between evictions of pods that were bound after the cordon
_LAST_RETURN_S: Final = 120.0
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Left:
    """Pods that a drain has left on the nodes, and why."""

    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # pod: why its eviction failed
    bare: tuple[str, ...] = ()  # without a controller that would create them again
    returned: tuple[str, ...] = ()  # bound after the cordon, which they tolerate

    @property
    def done(self) -> bool:
        return not self.pods

    def __str__(self) -> str:
        blocked = f", {len(self.blocked)} held by disruption budgets" if self.blocked else ""
        failed = f", {len(self.failed)} not evicted" if self.failed else ""
        returned = f", {len(self.returned)} new since the cordon" if self.returned else ""
        pods, nodes = counted(len(self.pods), "pod"), counted(len(self.nodes), "node")
        return f"{pods} left on {nodes}{blocked}{failed}{returned}"


def to_evict(pods: Iterable[Pod], domain: Domain = DEFAULT) -> list[Pod]:
    """Return the pods to evict: not ended, not of a DaemonSet, no placeholder of host ports."""

    def stays(pod: Pod) -> bool:
        owner = controller_of(pod)
        daemon = owner is not None and owner.kind == "DaemonSet"
        reserves = pod.namespace == domain.host_port_namespace
        return daemon or reserves or pod.status.phase in _ENDED

    return [pod for pod in pods if not stays(pod)]


def bare(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods without a controller that would create them again."""
    return [pod for pod in pods if controller_of(pod) is None and not pod.deleting]


@dataclass(slots=True)
class _NodeDrain:
    """State that a drain keeps of one node: its first pods, and when later ones are evicted."""

    first: frozenset[str]  # UIDs of the pods at the cordon
    evict_later_at: float = 0.0  # on the monotonic clock
    wait_s: float = _FIRST_RETURN_S

    def is_due(self, pod: Pod, now: float) -> bool:
        return pod.uid in self.first or now >= self.evict_later_at

    def back_off(self, now: float) -> None:
        """Delay the next eviction of pods bound after the cordon, twice as long each time."""
        self.evict_later_at = now + self.wait_s
        self.wait_s = min(2 * self.wait_s, _LAST_RETURN_S)


@dataclass
class Drain:
    """Drains one virtual node, or all virtual nodes of a binding.

    `grace_s` is the grace period of containers; None means that of their pods. `closed` are the
    names of cordoned nodes. With `force`, pods without a controller are evicted, too.
    """

    name: str
    client: Client
    domain: Domain = DEFAULT
    grace_s: int | None = None
    clock: Clock = field(default_factory=RealClock)
    force: bool = False
    evicted: int = 0
    closed: set[str] = field(default_factory=set)
    _attempts: dict[str, EvictionAttempt] = field(default_factory=dict)  # by UID
    _failures: dict[str, str] = field(default_factory=dict)  # why the last eviction failed, by UID
    _records: dict[str, _NodeDrain] = field(default_factory=dict)  # by the name of the node

    async def run(self, *, patience_s: float, say: Callable[[str], None]) -> Left:
        """Drain the nodes for at most `patience_s`; return the pods that are left.

        :raises ConfigError: the name is unknown, or pods need `force`.
        """
        await self._check()
        began = self.clock.monotonic()
        while True:
            left = await self.step()
            say(str(left))
            if left.done or self.clock.monotonic() - began >= patience_s:
                return left
            await self.clock.sleep(_POLL_S)

    async def _check(self) -> None:
        """Check that all pods may be evicted.

        :raises ConfigError: a pod without a controller needs `force`.
        """
        if self.force:
            return
        alone = bare(await self._pods(await self.nodes()))
        if alone:
            names = ", ".join(str(pod.key) for pod in alone[:_MAX_NAMED_PODS])
            more = (
                f" and {len(alone) - _MAX_NAMED_PODS} more" if len(alone) > _MAX_NAMED_PODS else ""
            )
            pods = counted(len(alone), "pod")
            message = f"{self.name} has {pods} that no controller would create again"
            raise ConfigError(
                f"{message}: {names}{more}; nothing was done; --force evicts these too"
            )

    async def _pods(self, nodes: Iterable[Node]) -> list[Pod]:
        pods: list[Pod] = []
        for node in nodes:
            listing = await self.client.list(PODS, fields=f"spec.nodeName={node.name}")
            pods += to_evict(listing.items, self.domain)
        return pods

    async def step(self) -> Left:
        """Cordon the nodes, evict pods that are due, and return the pods that are left.

        :raises ConfigError: no binding or virtual node has that name.
        """
        nodes = await self.nodes()
        for node in nodes:
            await self._cordon(node)
        pods = await self._pods(nodes)
        for node in nodes:
            uids = frozenset(pod.uid for pod in pods if pod.spec.node_name == node.name)
            self._records.setdefault(node.name, _NodeDrain(uids))
        alone = [] if self.force else bare(pods)
        await self._evict_due([pod for pod in pods if not pod.deleting and pod not in alone])
        returned = [pod for pod in pods if pod.uid not in self._records[pod.spec.node_name].first]
        blocked = [pod for pod in pods if self._is_blocked(pod)]
        return Left(
            nodes=tuple(node.name for node in nodes),
            pods=tuple(str(pod.key) for pod in pods),
            blocked=tuple(str(pod.key) for pod in blocked),
            failed={
                str(pod.key): self._failures[pod.uid] for pod in pods if pod.uid in self._failures
            },
            bare=tuple(str(pod.key) for pod in alone),
            returned=tuple(str(pod.key) for pod in returned if not pod.deleting),
        )

    async def _evict_due(self, pods: Iterable[Pod]) -> None:
        """Evict pods; those bound to a node after its cordon only when the node's delay is over."""
        now = self.clock.monotonic()
        for pod in [pod for pod in pods if self._records[pod.spec.node_name].is_due(pod, now)]:
            record = self._records[pod.spec.node_name]
            if pod.uid not in record.first and record.evict_later_at <= now:
                record.back_off(now)
            await self._evict(pod)

    async def undo(self) -> list[str]:
        """Uncordon the nodes that drain has cordoned; return their names."""
        uncordoned = []
        for node in await self.nodes():
            if self.domain.drained in node.annotations:
                await self._write(node, annotation=None, unschedulable=None)
                uncordoned.append(node.name)
        return uncordoned

    async def nodes(self) -> list[Node]:
        """Return the virtual nodes to drain: those of the binding `name`, or the node `name`.

        :raises ConfigError: no binding or virtual node has that name.
        """
        domain = self.domain
        with suppress(NotFound):
            binding = await self.client.get(CLUSTER_BINDINGS, self.name)
            ours = f"{domain.managed_by}={domain.product}"
            labels = f"{ours},{domain.cluster_binding}={label_value(self.name)}"
            listed = (await self.client.list(NODES, labels=labels)).items
            return [node for node in listed if self._belongs(node, binding)]
        try:
            node = await self.client.get(NODES, self.name)
        except NotFound:
            bindings = (await self.client.list(CLUSTER_BINDINGS)).items
            known = ", ".join(sorted(binding.name for binding in bindings)) or "none"
            message = f"{self.name!r} is neither a binding nor a node; known bindings: {known}"
            raise ConfigError(message) from None
        bindings = (await self.client.list(CLUSTER_BINDINGS)).items
        if not any(self._belongs(node, binding) for binding in bindings):
            raise ConfigError(f"{self.name!r} is not a virtual node; use kubectl drain")
        return [node]

    def _belongs(self, node: Node, binding: ClusterBinding) -> bool:
        cluster_id = binding.spec.cluster_id
        return is_virtual_node_of(
            node, binding=binding.name, cluster_id=cluster_id, domain=self.domain
        )

    async def _cordon(self, node: Node) -> None:
        """Cordon and annotate a node; do nothing if it is cordoned already."""
        if not node.spec.unschedulable:
            await self._write(node, annotation=TRUE, unschedulable=True)
        self.closed.add(node.name)

    async def _write(
        self, node: Node, *, annotation: str | None, unschedulable: bool | None
    ) -> None:
        metadata: Json = {"uid": node.uid, "annotations": {self.domain.drained: annotation}}
        body: Json = {"metadata": metadata, "spec": {"unschedulable": unschedulable}}
        with suppress(NotFound, Conflict):  # deleted or replaced; the next step reads it again
            await self.client.patch(NODES, node.name, MergePatch(body))

    async def _evict(self, pod: Pod) -> None:
        now, before = self.clock.now(), self._attempts.get(pod.uid)
        if before is not None and now < before.retry_at:
            return
        options: Json = {"preconditions": {"uid": pod.uid}}
        if self.grace_s is not None:
            options["gracePeriodSeconds"] = self.grace_s
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        answer, wait_s = EvictionResult.ACCEPTED, 0.0
        self._failures.pop(pod.uid, None)
        try:
            await self.client.post(PODS, pod.name, "eviction", body, pod.namespace)
            self.evicted += 1
        except (NotFound, Conflict):
            return  # deleted, or replaced by another pod of that name
        except TooManyRequests as error:
            answer, wait_s = EvictionResult.REFUSED, error.retry_after_s or 0.0
        except ApiError as error:
            # Two budgets of one pod, a namespace that terminates, a webhook, a lost connection.
            answer, self._failures[pod.uid] = EvictionResult.FAILED, str(error)
        count = before.count + 1 if before is not None and before.answer is answer else 1
        self._attempts[pod.uid] = EvictionAttempt(PodAction.EVICT, now, answer, count, wait_s)

    def _is_blocked(self, pod: Pod) -> bool:
        attempt = self._attempts.get(pod.uid)
        return not pod.deleting and attempt is not None and attempt.answer is EvictionResult.REFUSED
