"""Events of physical pods, told once more of the virtual ones, where people look.

Only what happens from now on to pods of ours that are there on both sides; names of copies are
replaced by those that a user knows. Nothing is kept: an Event that cannot be told at once is
dropped, and the recorder bounds what one pod may cause.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, Literal

from kubeocean.api import naming
from kubeocean.api.ownership import Claim, claim_pod
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import EVENTS, Event
from kubeocean.runtime.objects import Key
from kubeocean.runtime.watch import Changed, Listed, Restarted, Scope, Watch
from kubeocean.syncer.forge.references import references
from kubeocean.syncer.parts import WHOLE, Part, of_pod
from kubeocean.syncer.podviews import VIRTUAL_PODS, PhysicalPod, VirtualPod, virtual_key
from kubeocean.syncer.world import World

__all__ = ["PodEvents", "translate"]

# Of where a pod is bound people know from their own scheduler.
_KNOWN: Final = frozenset({"Scheduled"})
# API servers keep no watch cache of Events, so no bookmark comes while nothing happens.
_SILENCE_S: Final = 600.0


class PodEvents:
    """Of one binding's pods."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._part: Part = WHOLE
        scope = Scope(EVENTS, world.mount_namespace, fields="involvedObject.kind=Pod")
        self._watch = Watch(
            world.worker, scope, clock=world.clock, metrics=world.metrics, silence_s=_SILENCE_S
        )

    def share(self, part: Part) -> None:
        """Tell of the pods of this part only; before anything runs."""
        self._part = part

    async def run(self) -> None:
        """Tell what happens until cancelled."""
        listing = True
        async with aclosing(self._watch.follow()) as account:
            async for news in account:
                match news:
                    case Restarted():
                        listing = True
                    case Listed():
                        listing = False
                    case Changed() if not listing:
                        for fate, event in news.events:
                            if fate != "DELETED":
                                self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.reason in _KNOWN:
            return
        world, about = self._world, event.involved_object
        ppod = world.ppods.get(Key(about.namespace, about.name))
        if ppod is None or ppod.uid != about.uid:
            return
        vpod = world.vpods.get(virtual_key(ppod, world.domain))
        if vpod is None or not self._is_ours(vpod, ppod) or not self._part.owns(of_pod(vpod.key)):
            return
        said = reference(VIRTUAL_PODS, vpod, field_path=about.field_path)
        kind: Literal["Normal", "Warning"] = "Warning" if event.type == "Warning" else "Normal"
        world.events.emit(said, kind, event.reason, translate(event.message, vpod, ppod))

    def _is_ours(self, vpod: VirtualPod, ppod: PhysicalPod) -> bool:
        world = self._world
        claim = claim_pod(ppod, virtual=vpod.key, uid=vpod.uid, ids=world.ids, domain=world.domain)
        return claim in (Claim.OURS, Claim.TAKEABLE)


def translate(message: str, vpod: VirtualPod, ppod: PhysicalPod) -> str:
    """A kubelet's words with the names that the user of the virtual pod knows."""
    named = references(vpod.content())
    names = {
        f"{ppod.namespace}/{ppod.name}": str(vpod.key),
        f"{ppod.name}_{ppod.namespace}({ppod.uid})": f"{vpod.name}_{vpod.namespace}({vpod.uid})",
        ppod.name: vpod.name,
        ppod.uid: vpod.uid,
    }
    for name in (*named.config_maps, *named.secrets, *named.all_claims, *named.pull_secrets):
        physical = naming.physical_name(name, vpod.namespace)
        names[f"{ppod.namespace}/{physical}"] = f"{vpod.namespace}/{name}"
        names[f'"{ppod.namespace}"/"{physical}"'] = f'"{vpod.namespace}"/"{name}"'
        names[physical] = name
    for physical, virtual in names.items():
        message = message.replace(physical, virtual)
    return message
