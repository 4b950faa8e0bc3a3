"""Draining: virtual nodes, emptied as gently as disruption budgets ask for.

Nodes are cordoned first, and marked, so that `undo` lifts only what was put on by us. Then pods are
evicted through the API that asks the budgets; one that is held back is tried again, ever more
rarely, and holds up nobody else. Pods of DaemonSets stay: they would be back at once. Pods without
an owner would be gone for good: they go only by force, and without it nothing is begun. Whoever
stops in the middle leaves nodes that take no new pods, and pods that run or leave: nothing in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT, TRUE, Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import ConfigError, Conflict, NotFound, TooManyRequests
from kubeocean.leasing.report import counted
from kubeocean.leasing.situation import Answer, Attempt, Move
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES, PODS, Node, Pod
from kubeocean.runtime.objects import Json, controller_of
from kubeocean.runtime.patches import MergePatch

__all__ = ["Drain", "Left", "bare", "to_evict"]

_LOOK_S: Final = 1.0
_NAMED: Final = 10
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Left:
    """What is still there: pods on these nodes, and those of them that a budget holds back."""

    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()  # nobody would make them again

    @property
    def done(self) -> bool:
        return not self.pods

    def __str__(self) -> str:
        held = f", {len(self.held)} held by disruption budgets" if self.held else ""
        pods, nodes = counted(len(self.pods), "pod"), counted(len(self.nodes), "node")
        return f"{pods} left on {nodes}{held}"


def to_evict(pods: Iterable[Pod], domain: Domain = DEFAULT) -> list[Pod]:
    """Those that have to go: neither ended, nor a DaemonSet's, nor our own placeholders."""

    def stays(pod: Pod) -> bool:
        owner = controller_of(pod)
        daemon = owner is not None and owner.kind == "DaemonSet"
        reserves = pod.namespace == domain.host_port_namespace
        return daemon or reserves or pod.status.phase in _ENDED

    return [pod for pod in pods if not stays(pod)]


def bare(pods: Iterable[Pod]) -> list[Pod]:
    """Those that nobody would make again."""
    return [pod for pod in pods if controller_of(pod) is None and not pod.deleting]


@dataclass
class Drain:
    """Empties one virtual node, or all of a binding.

    `grace_s` is what containers are given to end; None means what their pods say. `closed` are the
    nodes that are known to take no new pods. `force`: pods without an owner go, too.
    """

    name: str
    client: Client
    domain: Domain = DEFAULT
    grace_s: int | None = None
    clock: Clock = field(default_factory=RealClock)
    force: bool = False
    evicted: int = 0
    closed: set[str] = field(default_factory=set)
    _attempts: dict[str, Attempt] = field(default_factory=dict)  # by UID

    async def run(self, *, patience_s: float, say: Callable[[str], None]) -> Left:
        """Empty it; what is left when that takes longer than so many seconds.

        :raises ConfigError: there is nothing of that name, or what is there needs force.
        """
        await self._check()
        began = self.clock.monotonic()
        while True:
            left = await self.round()
            say(str(left))
            if left.done or self.clock.monotonic() - began >= patience_s:
                return left
            await self.clock.sleep(_LOOK_S)

    async def _check(self) -> None:
        """Nothing is begun that would lose pods for good without a word."""
        if self.force:
            return
        alone = bare(await self._there(await self.nodes()))
        if alone:
            names = ", ".join(str(pod.key) for pod in alone[:_NAMED])
            more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
            said = f"{self.name} has {counted(len(alone), 'pod')} that nobody would make again"
            raise ConfigError(f"{said}: {names}{more}; nothing was done; --force evicts them, too")

    async def _there(self, nodes: Iterable[Node]) -> list[Pod]:
        there: list[Pod] = []
        for node in nodes:
            listing = await self.client.list(PODS, fields=f"spec.nodeName={node.name}")
            there += to_evict(listing.items, self.domain)
        return there

    async def round(self) -> Left:
        """Cordon what takes pods, evict what may be evicted now, and look what is there.

        :raises ConfigError: there is nothing of that name that could be emptied.
        """
        nodes = await self.nodes()
        for node in nodes:
            await self._cordon(node)
        there = await self._there(nodes)
        alone = [] if self.force else bare(there)
        for pod in there:
            if not pod.deleting and pod not in alone:
                await self._evict(pod)
        held = [pod for pod in there if self._is_held(pod)]
        return Left(
            nodes=tuple(node.name for node in nodes),
            pods=tuple(str(pod.key) for pod in there),
            held=tuple(str(pod.key) for pod in held),
            bare=tuple(str(pod.key) for pod in alone),
        )

    async def undo(self) -> list[str]:
        """Let nodes that we cordoned take pods again; their names."""
        freed = []
        for node in await self.nodes():
            if self.domain.drained in node.annotations:
                await self._write(node, annotation=None, unschedulable=None)
                freed.append(node.name)
        return freed

    async def nodes(self) -> list[Node]:
        """The virtual nodes that are meant.

        :raises ConfigError: there are none of that name.
        """
        domain = self.domain
        with suppress(NotFound):
            await self.client.get(CLUSTER_BINDINGS, self.name)
            ours = f"{domain.managed_by}={domain.product}"
            labels = f"{ours},{domain.cluster_binding}={label_value(self.name)}"
            return (await self.client.list(NODES, labels=labels)).items
        try:
            node = await self.client.get(NODES, self.name)
        except NotFound:
            there = (await self.client.list(CLUSTER_BINDINGS)).items
            known = ", ".join(sorted(each.name for each in there)) or "none"
            said = f"{self.name!r} is neither a binding nor a node; there are bindings: {known}"
            raise ConfigError(said) from None
        if node.labels.get(domain.managed_by) != domain.product:
            raise ConfigError(f"{self.name!r} is not a virtual node; kubectl drain empties it")
        return [node]

    async def _cordon(self, node: Node) -> None:
        """A node that somebody else cordoned stays his."""
        if not node.spec.unschedulable:
            await self._write(node, annotation=TRUE, unschedulable=True)
        self.closed.add(node.name)

    async def _write(
        self, node: Node, *, annotation: str | None, unschedulable: bool | None
    ) -> None:
        metadata: Json = {"uid": node.uid, "annotations": {self.domain.drained: annotation}}
        body: Json = {"metadata": metadata, "spec": {"unschedulable": unschedulable}}
        with suppress(NotFound, Conflict):  # it is gone, or another one: the next look tells
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
        answer, wait_s = Answer.ACCEPTED, 0.0
        try:
            await self.client.post(PODS, pod.name, "eviction", body, pod.namespace)
            self.evicted += 1
        except (NotFound, Conflict):
            return  # gone, or another pod of that name
        except TooManyRequests as error:
            answer, wait_s = Answer.REFUSED, error.retry_after_s or 0.0
        count = before.count + 1 if before is not None and before.answer is answer else 1
        self._attempts[pod.uid] = Attempt(Move.EVICT, now, answer, count, wait_s)

    def _is_held(self, pod: Pod) -> bool:
        attempt = self._attempts.get(pod.uid)
        return not pod.deleting and attempt is not None and attempt.answer is Answer.REFUSED
