"""Following a pod that runs: its status goes up, changes of the virtual pod go down.

Each way costs one write for a real change and none otherwise. Where a pod runs is told with the
first status that there is to tell; a status that is as good as here already is waited for.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from kubeocean.api.reasons import PodEvent
from kubeocean.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.codec import encode
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch, StrategicPatch
from kubeocean.syncer.forge import podshown, podstatus
from kubeocean.syncer.forge.podchanges import PodPatch, changes
from kubeocean.syncer.forge.podcontext import Names, Refused
from kubeocean.syncer.forge.references import References, references
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.missing import Missing
from kubeocean.syncer.topdown.podcreation import Creation
from kubeocean.syncer.topdown.podlags import PodLags
from kubeocean.syncer.topdown.podneeds import PodNeeds
from kubeocean.syncer.topdown.podrefusals import Refusals
from kubeocean.syncer.topdown.podtroubles import CHANGES, TOKENS, Troubles
from kubeocean.syncer.topdown.podwrites import PodWrites
from kubeocean.syncer.world import World

__all__ = ["UNSCHEDULED_S", "Following", "soonest"]

UNSCHEDULED_S: Final = 300.0
_FIRST_STATUS_S: Final = 0.4  # within which a kubelet says something of a new pod, if it is there
_SOON_S: Final = 0.05
_ACCOUNT_S: Final = 30.0  # nobody tells us of a service account that comes back
# What another attempt will not change by itself.
_NO: Final = (BadRequest, Forbidden, InternalError, Invalid, RequestTooLarge)
_NO_TOKEN: Final = (*_NO, AlreadyExists, NotFound)

_log = get_logger(__name__)


class Following:
    """Of one binding's pods."""

    def __init__(
        self,
        world: World,
        needs: PodNeeds,
        creation: Creation,
        *,
        writes: PodWrites,
        refusals: Refusals,
        lags: PodLags,
    ) -> None:
        self._lags = lags
        self._world = world
        self._needs = needs
        self._creation = creation
        self._writes = writes
        self._troubles = Troubles(world, refusals)
        self._made_at: dict[str, float] = {}  # by physical UID, until its first status
        self._carried: dict[str, int] = {}  # by virtual UID: what differed in nothing
        self._vain: dict[str, tuple[str, str]] = {}  # by virtual UID: versions that differ for ever
        self._settled: dict[str, tuple[str, str]] = {}  # by virtual UID: versions that agree
        self._waits_since: dict[str, float] = {}  # by physical UID: for a node
        self._version: dict[str, str] = {}  # by virtual UID: what our write made of it
        self._patched: set[str] = set()  # by physical UID: those that we changed in this turn

    def made(self, ppod: PhysicalPod) -> Outcome:
        """It was created just now; when its first status is due."""
        self._made_at[ppod.uid] = self._world.clock.monotonic()
        return After(_FIRST_STATUS_S)

    def is_no_news(self, ppod: PhysicalPod) -> bool:
        """Whether nothing was said of a new pod but that it has a node; its first status is due in
        any case, and then everything is looked at."""
        return self._first_status_s(ppod) > 0 and ppod.is_untold

    def is_own_write(self, vpod: VirtualPod) -> bool:
        """Whether this is what our own last write made of it, and nothing was left to do then."""
        settled = self._settled.get(vpod.uid)
        return settled is not None and settled[0] == vpod.resource_version

    def forget(self, vpod: VirtualPod) -> None:
        """The virtual pod is gone."""
        self._troubles.forget(vpod)
        self._vain.pop(vpod.uid, None)
        self._carried.pop(vpod.uid, None)
        self._settled.pop(vpod.uid, None)
        self._version.pop(vpod.uid, None)

    def unsettle(self, vpod: VirtualPod) -> None:
        """Something changed that is in neither of the two pods."""
        self._settled.pop(vpod.uid, None)

    def forget_physical(self, ppod: PhysicalPod) -> None:
        self._made_at.pop(ppod.uid, None)
        self._patched.discard(ppod.uid)
        self._waits_since.pop(ppod.uid, None)

    async def follow(self, vpod: VirtualPod, ppod: PhysicalPod, vnode: Node | None) -> Outcome:
        """Carry everything that differs to the other side."""
        if self.is_no_news(ppod):
            return After(self._first_status_s(ppod))
        return await self._unless_settled(vpod, ppod, lambda: self._exchange(vpod, ppod, vnode))

    async def show_end(self, vpod: VirtualPod, ppod: PhysicalPod) -> Outcome:
        """How a pod ends that was told to; nothing goes down any more.

        Once it has ended above, or while nothing new is said of it below, there is nothing to show.
        """
        settled = self._settled.get(vpod.uid)
        if vpod.finished or (settled is not None and settled[1] == ppod.resource_version):
            return Done()

        def show() -> Awaitable[Outcome]:
            return self.show(vpod, ppod, above=vpod.content(), below=ppod.content())

        return await self._unless_settled(vpod, ppod, show)

    async def _unless_settled(
        self, vpod: VirtualPod, ppod: PhysicalPod, exchange: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Most news are of our own writes: the pods that they show need not be read again."""
        versions = (vpod.resource_version, ppod.resource_version)
        if self._settled.get(vpod.uid) == versions:
            return Done()
        outcome = await exchange()
        version = self._version.pop(vpod.uid, vpod.resource_version)
        patched = ppod.uid in self._patched
        self._patched.discard(ppod.uid)
        if isinstance(outcome, Done) and not patched:
            self._settled[vpod.uid] = (version, ppod.resource_version)
        return outcome

    async def _exchange(self, vpod: VirtualPod, ppod: PhysicalPod, vnode: Node | None) -> Outcome:
        above, below = vpod.content(), ppod.content()
        outcomes = [await self.show(vpod, ppod, above=above, below=below)]
        if ppod.deleting or ppod.finished or vnode is None:
            return soonest(outcomes)
        outcomes += [
            await self._carry_down(vpod, ppod, vnode, above=above, below=below),
            await self._open_gates(vpod, ppod, above=above, below=below),
            await self.attach(vpod, ppod, references(above)),
            await self._give_up(vpod, ppod, below=below),
            await self._tell_trouble(vpod, above),
        ]
        return soonest(outcomes)

    # Up

    async def show(
        self, vpod: VirtualPod, ppod: PhysicalPod, *, above: Json, below: Json
    ) -> Outcome:
        """The status of the physical pod, and where it runs, on the virtual one."""
        domain = self._world.domain
        status = podstatus.mirror(above, below)
        metadata = podshown.metadata(above, below, domain)
        if not status and not metadata:
            self._lags.shown(vpod.key, written=False)
            return Done()
        versions = (vpod.resource_version, ppod.resource_version)
        if self._vain.get(vpod.uid) == versions:
            return Done()
        annotations = metadata.get("annotations", {})
        metadata["annotations"] = annotations | {domain.last_sync_time: self._world.now_text()}
        await self.write_above(vpod, status, metadata, ppod=ppod)
        self._lags.shown(vpod.key, written=True)
        self._made_at.pop(ppod.uid, None)
        return Done()

    async def write_above(
        self,
        vpod: VirtualPod,
        status: Json,
        metadata: Json | None = None,
        *,
        ppod: PhysicalPod | None = None,
    ) -> VirtualPod | None:
        """One patch of a virtual pod's status; None if the pod is gone.

        Where its annotations have no room for the worker's, the status is written without them.
        """
        try:
            written = await self._patch_above(vpod, status, metadata or {})
        except NotFound:
            return None
        except Invalid as error:
            if not metadata:
                raise
            written = await self._patch_above(vpod, status, self._where(metadata))
            message = f"Labels and annotations of the worker's pod are not shown: {error}"
            said = reference(VIRTUAL_PODS, vpod)
            self._world.events.emit(said, "Warning", PodEvent.FAILED_UPDATE, message)
        self._writes.wrote_above(written)
        self._version[vpod.uid] = written.resource_version
        if ppod is not None and written.resource_version == vpod.resource_version:
            # A server of another version drops what it does not know: we would write for ever.
            self._vain[vpod.uid] = (vpod.resource_version, ppod.resource_version)
        return written

    async def _patch_above(self, vpod: VirtualPod, status: Json, metadata: Json) -> VirtualPod:
        precondition = {"uid": vpod.uid, "resourceVersion": vpod.resource_version}
        body: Json = {"metadata": metadata | precondition}
        if status:
            body["status"] = status
        return await self._world.computing.patch(
            VIRTUAL_PODS, vpod.name, MergePatch(body), vpod.namespace, subresource="status"
        )

    def _where(self, metadata: Json) -> Json:
        """Of what is shown of a pod only where it runs."""
        domain, said = self._world.domain, metadata.get("annotations") or {}
        where = (domain.physical_pod_namespace, domain.physical_pod_name, domain.physical_pod_uid)
        return {"annotations": {key: said[key] for key in where if key in said}}

    def _first_status_s(self, ppod: PhysicalPod) -> float:
        made_at = self._made_at.get(ppod.uid)
        if made_at is None:
            return 0.0
        return made_at + _FIRST_STATUS_S - self._world.clock.monotonic()

    # Down

    async def attach(self, vpod: VirtualPod, ppod: PhysicalPod, refs: References) -> Outcome:
        """What belongs to the physical pod itself: its tokens."""
        if (left_s := self._troubles.left_s(vpod, TOKENS)) > 0:
            return After(left_s)
        try:
            due_s = await self._needs.attach(vpod, ppod, refs)
        except _NO_TOKEN as error:
            return self._troubles.tell(vpod, TOKENS, str(error), at_most_s=_ACCOUNT_S)
        self._troubles.over(vpod, TOKENS)
        return Done() if due_s is None else After(due_s)

    async def _tell_trouble(self, vpod: VirtualPod, above: Json) -> Outcome:
        """What could not be carried down is said on the virtual pod for as long as that is so."""
        said = self._troubles.message(vpod)
        status = podstatus.trouble(above, said, now=self._world.now_text() if said else "")
        if not status:
            return Done()
        if vpod.uid in self._version:
            return After(_SOON_S)  # we have written it in this turn, and know an old one
        await self.write_above(vpod, status)
        return Done()

    async def _carry_down(
        self, vpod: VirtualPod, ppod: PhysicalPod, vnode: Node, *, above: Json, below: Json
    ) -> Outcome:
        own = podshown.users_own(above, self._world.domain)
        seen = _fingerprint(own, below)
        if self._carried.get(vpod.uid) == seen:
            return Done()
        names = Names()
        if own["spec"].get("ephemeralContainers"):  # the only ones that come later
            found = await self._needs.prepare(vpod, references(own))
            if isinstance(found, Missing):
                return self._troubles.tell(vpod, CHANGES, found.message)
            names = found
        try:
            wanted = changes(own, below, self._creation.context(vpod, vnode, names))
            for patch in wanted.patches:
                await self._patch_below(vpod.key, ppod, patch)
        except (Refused, *_NO) as error:
            return self._troubles.tell(vpod, CHANGES, str(error))
        except NotFound:
            return Done()  # it is gone, which the cache will show
        if wanted.refused:
            self._troubles.note(vpod, CHANGES, "; ".join(map(str, wanted.refused)))
        else:
            self._troubles.over(vpod, CHANGES)
        if not wanted.patches:
            self._carried[vpod.uid] = seen
        return Done()

    async def _patch_below(self, key: Key, ppod: PhysicalPod, patch: PodPatch) -> None:
        written = await self._world.worker.patch(
            PHYSICAL_PODS,
            ppod.name,
            StrategicPatch(patch.body),
            ppod.namespace,
            subresource=patch.subresource,
        )
        self._writes.wrote_below(key, written)
        self._patched.add(ppod.uid)
        _log.info("Changed pod", vpod=str(key), ppod=str(ppod.key), part=patch.subresource)

    async def _open_gates(
        self, vpod: VirtualPod, ppod: PhysicalPod, *, above: Json, below: Json
    ) -> Outcome:
        conditions = podstatus.gates(above, below)
        if conditions:
            body = {"metadata": {"uid": ppod.uid}, "status": {"conditions": conditions}}
            with suppress(NotFound):
                await self._patch_below(vpod.key, ppod, PodPatch(body, "status"))
        return Done()

    async def _give_up(self, vpod: VirtualPod, ppod: PhysicalPod, *, below: Json) -> Outcome:
        """The worker's scheduler has some minutes; a pod that it has no node for is not kept."""
        if ppod.spec.node_name:
            return Done()
        world = self._world
        # By our own clock alone: the worker's may be another.
        now = world.clock.monotonic()
        left_s = UNSCHEDULED_S - (now - self._waits_since.setdefault(ppod.uid, now))
        if left_s > 0:
            return After(left_s)
        why = podstatus.waits_for_node(below) or "the worker's scheduler says nothing"
        with suppress(NotFound, Conflict):
            # Not if it was bound in this moment: that is another version.
            await world.worker.delete(
                PHYSICAL_PODS,
                ppod.name,
                ppod.namespace,
                uid=ppod.uid,
                resource_version=ppod.resource_version,
            )
            self._writes.deleted_below(vpod.key, ppod)
            message = f"Not scheduled in the worker within {UNSCHEDULED_S:g} s: {why}"
            said = reference(VIRTUAL_PODS, vpod)
            world.events.emit(said, "Warning", PodEvent.FAILED_SCHEDULING, message)
            self._creation.counts.unmade.inc()
            _log.info("Gave up pod that was not scheduled", vpod=str(vpod.key), why=why)
        return Done()


def soonest(outcomes: Iterable[Outcome]) -> Outcome:
    """When to look again, if any of them asks for it."""
    waits = [outcome.seconds for outcome in outcomes if isinstance(outcome, After)]
    return After(min(waits)) if waits else Done()


def _fingerprint(own: Json, below: Json) -> int:
    """Equal for pods between which there is nothing new to carry down."""
    above, meta = own["metadata"], below["metadata"]
    texts = [each.get(name) for each in (above, meta) for name in ("labels", "annotations")]
    return zlib.crc32(encode([texts, own["spec"], meta.get("deletionTimestamp")]))
