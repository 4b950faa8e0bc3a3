"""Inventory: both sides of a binding, read fresh and compared.

For people who want to know now, whether a syncer runs or not: every list is asked of the servers.
A kind that they do not let us list is named, and what depends on it counts as wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.errors import Forbidden
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, SECRETS
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped
from kubeocean.syncer.comparison import (
    POD,
    TOKEN,
    Bound,
    Finding,
    Kept,
    Trace,
    compare,
    trace,
    untyped,
)
from kubeocean.syncer.forge import claims, configmaps, secrets, volumes
from kubeocean.syncer.forge.copies import Recipe
from kubeocean.syncer.forge.csinodes import CSI_NODES
from kubeocean.syncer.forge.hostports import RESERVATION_PODS
from kubeocean.syncer.forge.references import references
from kubeocean.syncer.podplan import is_lent
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, VirtualPod, bound_pods
from kubeocean.syncer.topdown.uses import Use, uses_of

__all__ = ["Inventory", "Look"]

_CONFIG_MAPS, _SECRETS = configmaps.CONFIG_MAPS, secrets.SECRETS
_CLAIMS, _VOLUMES = claims.CLAIMS, volumes.VOLUMES


@dataclass(slots=True)
class Look:
    """What there was at one time."""

    pods: dict[Key, Bound] = field(default_factory=dict)
    used: set[Use] = field(default_factory=set)
    held_volumes: set[str] = field(default_factory=set)  # physical names
    held_secrets: set[Key] = field(default_factory=set)  # physical
    skipped: set[str] = field(default_factory=set)  # kinds that we may not list
    findings: tuple[Finding, ...] = ()

    def is_unused(self, each: Trace) -> bool:
        """Whether neither a pod nor another copy needs a copy."""
        if each.kind == _VOLUMES.originals.kind:
            return (
                _CLAIMS.copies.kind not in self.skipped and each.key.name not in self.held_volumes
            )
        if (each.kind, each.virtual) in self.used:
            return False
        if each.kind != _SECRETS.originals.kind:
            return True
        return _VOLUMES.copies.kind not in self.skipped and each.key not in self.held_secrets

    def is_wanted(self, each: Trace) -> bool:
        return not self.is_unused(each)

    def has_pod(self, each: Trace) -> bool:
        pod = self.pods.get(each.virtual)
        return pod is not None and pod.uid == each.virtual_uid


class Inventory:
    """Looks at one binding."""

    def __init__(
        self, computing: Client, worker: Client, *, ids: Ids, mount_namespace: str, domain: Domain
    ) -> None:
        self._computing = computing
        self._worker = worker
        self._ids = ids
        self._mount = mount_namespace
        self._domain = domain

    async def look(self) -> Look:
        """Read everything, and compare.

        The worker comes first: what is made meanwhile has its virtual pod already, and is not
        mistaken for an orphan.
        """
        look, domain = Look(), self._domain
        managed = f"{domain.managed_by}={domain.product}"
        pods = await self._list(look, self._worker, PHYSICAL_PODS, self._mount, labels=managed)
        made = await self._list(look, self._worker, SECRETS, self._mount, labels=managed)
        copies = [
            (recipe, await self._copies(look, recipe, managed))
            for recipe in (_CONFIG_MAPS, _CLAIMS, _VOLUMES)
        ]
        drivers, reservations, vnodes = await self._read_above(look, managed)
        await self._read_pods(look, await self._strangers())
        tokens = [each for each in made if domain.service_account_token in each.labels]
        plain = [each for each in made if domain.service_account_token not in each.labels]
        virtual = untyped(VIRTUAL_PODS)
        kept = [
            Kept(self._traces(pods, POD, untyped(PHYSICAL_PODS), virtual), look.has_pod),
            Kept(self._traces(tokens, TOKEN, untyped(SECRETS), virtual), look.has_pod),
            Kept(self._of(plain, _SECRETS), look.is_wanted),
            *(Kept(self._of(found, recipe), look.is_wanted) for recipe, found in copies),
            Kept([*drivers, *reservations], lambda each: each.virtual.name in vnodes),
        ]
        look.findings = tuple(compare(kept, look.pods))
        return look

    async def is_used_now(self, each: Trace) -> bool:
        """Whether a pod uses a copy, asked just for it; for a volume, whether a claim does."""
        if each.kind == _VOLUMES.originals.kind:
            where = untyped(_CLAIMS.copies)
            found = (await self._worker.list(where, self._mount, keep_raw=True)).items
            specs = [claim.content().get("spec") or {} for claim in found]
            return any(spec.get("volumeName") == each.key.name for spec in specs)
        look = Look()
        await self._read_pods(look, await self._strangers(), each.virtual.namespace)
        return (each.kind, each.virtual) in look.used

    # Below

    async def _copies(self, look: Look, recipe: Recipe, managed: str) -> list[Untyped]:
        namespace = self._mount if recipe.copies.namespaced else ""
        where = untyped(recipe.copies)
        found = await self._list(look, self._worker, where, namespace, labels=managed)
        if recipe is _CLAIMS:
            specs = (each.content().get("spec") or {} for each in found)
            look.held_volumes = {spec.get("volumeName") or "" for spec in specs}
        elif recipe is _VOLUMES:
            for each in found:
                look.held_secrets |= volumes.secrets_of(each.content()).keys()
        return found

    # Above

    async def _read_above(
        self, look: Look, managed: str
    ) -> tuple[list[Trace], list[Trace], set[str]]:
        computing, domain = self._computing, self._domain
        ours = f"{managed},{domain.cluster_binding}={naming.label_value(self._ids.binding)}"
        drivers = await self._list(look, computing, CSI_NODES, labels=ours)
        reservations = await self._list(
            look, computing, RESERVATION_PODS, domain.host_port_namespace, labels=ours
        )
        vnodes = {each.name for each in (await computing.list(NODES, labels=ours)).items}
        return (
            [_above(each, "CSINode", CSI_NODES, each.name) for each in drivers],
            [
                _above(each, "port reservation", RESERVATION_PODS, each.spec.node_name)
                for each in reservations
            ],
            vnodes,
        )

    async def _strangers(self) -> set[str]:
        """Virtual nodes of other workers. The clusterID of one may begin with that of another, so
        names do not tell; of a node that is gone there is nothing else, and it counts as ours."""
        domain = self._domain
        managed = f"{domain.managed_by}={domain.product}"
        nodes = (await self._computing.list(NODES, labels=managed)).items
        return {each.name for each in nodes if not is_lent(each, self._ids, domain)}

    async def _read_pods(self, look: Look, strangers: Set[str], namespace: str = "") -> None:
        """The virtual pods of this worker. There may be many others: they go by in pages."""
        prefix = naming.virtual_node_prefix(self._ids.cluster_id)
        async for page in self._computing.pages(
            VIRTUAL_PODS, namespace, fields=bound_pods(self._domain), keep_raw=True
        ):
            if page.begins:
                look.pods.clear()
                look.used.clear()
            for pod in page.items:
                node = pod.spec.node_name
                if node.startswith(prefix) and node not in strangers:
                    look.pods[pod.key] = self._bound(pod)
                    look.used |= uses_of(references(pod.content()), pod.namespace)

    def _bound(self, pod: VirtualPod) -> Bound:
        physical = pod.annotations.get(self._domain.physical_pod_uid, "")
        return Bound(pod.uid, physical, runs=not pod.finished and not pod.deleting)

    # Both

    async def _list(
        self,
        look: Look,
        client: Client,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str,
    ) -> list[ObjectT]:
        try:
            listing = await client.list(resource, namespace, labels=labels, keep_raw=True)
        except Forbidden:
            look.skipped.add(resource.kind)
            return []
        return listing.items

    def _of(self, objects: Iterable[Object], recipe: Recipe) -> list[Trace]:
        what, where = untyped(recipe.originals), untyped(recipe.copies)
        return self._traces(objects, what.kind, where, what)

    def _traces(
        self,
        objects: Iterable[Object],
        kind: str,
        resource: Resource[Untyped],
        original: Resource[Untyped],
    ) -> list[Trace]:
        ids, domain = self._ids, self._domain
        found = (
            trace(each, kind=kind, resource=resource, original=original, ids=ids, domain=domain)
            for each in objects
        )
        return [each for each in found if each is not None]


def _above(each: Object, kind: str, resource: Resource[ObjectT], vnode: str) -> Trace:
    """What stands beside a virtual node."""
    return Trace(
        kind=kind,
        resource=untyped(resource),
        key=each.key,
        uid=each.uid,
        virtual=Key("", vnode),
        virtual_uid="",
        original=untyped(NODES),
        above=True,
        deleting=each.deleting,
    )
