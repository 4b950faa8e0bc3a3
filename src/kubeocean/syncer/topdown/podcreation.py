"""Creation of physical pods: one for each virtual pod, whoever tries and however often.

Its name follows from the virtual pod's, so that a second attempt meets the first. Where somebody
else has that name a second one follows from the virtual UID as well. What the worker says no to is
told above and tried again, ever more rarely.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.api import group, naming
from kubeocean.api.ownership import Claim, ownership
from kubeocean.api.reasons import PodEvent
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.syncer.figures import PodCounts
from kubeocean.syncer.forge.podcontext import Context, Names, Refused
from kubeocean.syncer.forge.pods import forge
from kubeocean.syncer.forge.podshown import users_own
from kubeocean.syncer.forge.references import References, references
from kubeocean.syncer.podplan import claim_of
from kubeocean.syncer.podviews import PHYSICAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.missing import Missing
from kubeocean.syncer.topdown.podadmission import Admission
from kubeocean.syncer.topdown.podneeds import PodNeeds
from kubeocean.syncer.topdown.podrefusals import Refusals
from kubeocean.syncer.topdown.podwrites import PodWrites
from kubeocean.syncer.topdown.surroundings import Surroundings
from kubeocean.syncer.world import World

__all__ = ["PRIORITY_CLASSES", "Answer", "Creation", "Made", "Taken"]

PRIORITY_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, Untyped
)

_LOOK_AGAIN_S: Final = 0.2
_SLOW_S: Final = 1.0
# What another attempt will not change by itself.
_NO: Final = (BadRequest, Forbidden, InternalError, Invalid, NotFound, RequestTooLarge)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """A physical pod that runs for a virtual one, with what it refers to."""

    ppod: PhysicalPod
    refs: References
    new: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """The name belongs to this one, which is ours but runs for an earlier virtual pod."""

    ppod: PhysicalPod


Answer: TypeAlias = Made | Taken | Outcome


class Creation:
    """Makes the physical pods of one binding."""

    def __init__(
        self,
        world: World,
        needs: PodNeeds,
        surroundings: Surroundings,
        *,
        writes: PodWrites,
        refusals: Refusals,
    ) -> None:
        self._world = world
        self._needs = needs
        self._surroundings = surroundings
        self._writes = writes
        self._refusals = refusals
        self._admission = Admission(world, writes)
        self.counts = PodCounts(world.binding_name, world.metrics)

    async def create(
        self,
        vpod: VirtualPod,
        vnode: Node,
        *,
        is_current: Callable[[VirtualPod], Awaitable[bool]],
    ) -> Answer:
        """The physical pod, made now or found; or what has to go first, or is waited for.

        `is_current` asks above, if so much time passed that the virtual pod may be gone again.
        """
        if not self._surroundings.synced:
            return After(_LOOK_AGAIN_S)
        if await self._admission.rejects(vpod, vnode):
            return Done()
        pod = users_own(vpod.content(), self._world.domain)
        refs = references(pod)
        lack = self._surroundings.lacking(dns=_asks_dns(pod))
        if lack is not None:
            return After(await self._refusals.tell(vpod, lack.message))
        began_s = self._world.clock.monotonic()
        try:
            names = await self._prepare(vpod, refs)
            if isinstance(names, Missing):
                said = await self._refusals.tell(vpod, names.message, at_most_s=names.retry_s)
                return After(said)
            slow = self._world.clock.monotonic() - began_s > _SLOW_S
            if slow and not await is_current(vpod):
                return After(_LOOK_AGAIN_S)
            return await self._make(vpod, pod, refs, self.context(vpod, vnode, names))
        except (Refused, *_NO) as error:
            return After(await self._refusals.tell(vpod, str(error)))

    async def _prepare(self, vpod: VirtualPod, refs: References) -> Names | Missing:
        try:
            return await self._needs.prepare(vpod, refs)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # several at a time; any of them says enough

    def context(self, vpod: VirtualPod, vnode: Node, names: Names) -> Context:
        """All that the pod is made from, as of now."""
        world, around = self._world, self._surroundings
        binding = world.binding
        return Context(
            name=naming.physical_name(vpod.name, vpod.namespace),
            namespace=world.mount_namespace,
            node=world.pnode_of(vnode),
            vnode=vnode.name,
            names=names,
            ownership=ownership(world.ids, world.domain),
            direct_scheduling=binding is not None and binding.spec.direct_scheduling,
            priority_class=binding.spec.pod_priority_class_name if binding is not None else "",
            server=around.server,
            dns=around.dns,
            cluster_domain=around.cluster_domain,
            services=around.services(vpod.namespace),
            privileges=around.privileges,
            domain=world.domain,
        )

    async def _make(
        self, vpod: VirtualPod, pod: Json, refs: References, context: Context
    ) -> Answer:
        body = forge(pod, context)
        answer = await self._try(vpod, refs, body)
        if not isinstance(answer, Taken) or self._is_stale(vpod, answer.ppod):
            return answer
        second = naming.second_physical_name(vpod.name, vpod.namespace, uid=vpod.uid)
        _log.info("Found name taken", vpod=str(vpod.key), taken=answer.ppod.name, instead=second)
        body["metadata"]["name"] = second
        answer = await self._try(vpod, refs, body)
        if not isinstance(answer, Taken) or self._is_stale(vpod, answer.ppod):
            return answer
        message = f"pod {answer.ppod.key} of the worker belongs to somebody else"
        return After(await self._refusals.tell(vpod, message, reason=PodEvent.NAME_TAKEN))

    async def _try(self, vpod: VirtualPod, refs: References, body: Json) -> Answer:
        world = self._world
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        known = world.ppods.get(key)
        if known is None:
            try:
                made = await self._post(body)
            except AlreadyExists:
                # One that went meanwhile is a NotFound: the next attempt has the name.
                known = await world.worker.get(
                    PHYSICAL_PODS, key.name, key.namespace, keep_raw=True
                )
            else:
                self._writes.wrote_below(vpod.key, made)
                _log.info("Created pod", vpod=str(vpod.key), ppod=str(made.key))
                return Made(made, refs, new=True)
        claim = self._claim(vpod, known)
        return Made(known, refs, new=False) if claim in _OURS else Taken(known)

    async def _post(self, body: Json) -> PhysicalPod:
        self.counts.tried.inc()
        try:
            made = await self._send(body)
        except AlreadyExists:
            raise  # it is there, which is what was wanted
        except ApiError:
            self.counts.failed.inc()
            raise
        self.counts.made.inc()
        return made

    async def _send(self, body: Json) -> PhysicalPod:
        worker = self._world.worker
        try:
            return await worker.create(PHYSICAL_PODS, body)
        except Forbidden as error:
            if not self._lacks_priority_class(body, error):
                raise
        try:
            await worker.create(PRIORITY_CLASSES, self._priority_class())
        except AlreadyExists:
            _log.debug("Found priority class")  # another syncer of this worker was quicker
        return await worker.create(PHYSICAL_PODS, body)

    def _lacks_priority_class(self, body: Json, error: ApiError) -> bool:
        ours: str = self._world.domain.priority_class
        named = body["spec"].get("priorityClassName") == ours
        return named and "PriorityClass" in str(error) and ours in str(error)

    def _priority_class(self) -> Json:
        domain = self._world.domain
        labels = {domain.managed_by: domain.product}
        return {
            "metadata": {"name": domain.priority_class, "labels": labels},
            "value": group.PRIORITY_CLASS_VALUE,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": "Pods of other clusters, which run where nobody else wants to",
        }

    def _claim(self, vpod: VirtualPod, ppod: PhysicalPod) -> Claim:
        return claim_of(vpod, ppod, ids=self._world.ids, domain=self._world.domain)

    def _is_stale(self, vpod: VirtualPod, ppod: PhysicalPod) -> bool:
        return self._claim(vpod, ppod) is Claim.STALE


_OURS: Final = (Claim.OURS, Claim.TAKEABLE)


def _asks_dns(pod: Json) -> bool:
    """Whether it asks the computing cluster's DNS; with the host's network only if it insists."""
    policy = pod["spec"].get("dnsPolicy") or "ClusterFirst"
    on_host = bool(pod["spec"].get("hostNetwork"))
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not on_host)
