"""Applying: objects, put into a cluster and taken out of it.

Putting in is server-side apply: who does it twice changes nothing, and what others have set stays
theirs unless we are told to take it over. Taking out is of what is provably part of us, by UID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import APP_PART_OF, Domain
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import ApiError, Conflict, InvariantError, NotFound
from kubeocean.installation.parts import RBAC, title
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.patches import ApplyPatch

__all__ = ["FIELD_MANAGER", "Applier", "Fate", "resource_of"]

FIELD_MANAGER: Final = "kubeocean-install"
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 30.0


class Fate(StrEnum):
    """What became of an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    ABSENT = "absent"
    FOREIGN = "not ours"


def _kind(group: str, kind: str, plural: str, *, namespaced: bool = True) -> Resource[Untyped]:
    return Resource(group, "v1", plural, kind, namespaced, Untyped)


_KINDS: Final = {
    (each.api_version, each.kind): each
    for each in (
        _kind("", "ConfigMap", "configmaps"),
        _kind("", "Namespace", "namespaces", namespaced=False),
        _kind("", "ResourceQuota", "resourcequotas"),
        _kind("", "Secret", "secrets"),
        _kind("", "Service", "services"),
        _kind("", "ServiceAccount", "serviceaccounts"),
        _kind("apps", "Deployment", "deployments"),
        _kind("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
        _kind("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
        _kind("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
        _kind("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
        _kind(RBAC, "ClusterRole", "clusterroles", namespaced=False),
        _kind(RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
        _kind(RBAC, "Role", "roles"),
        _kind(RBAC, "RoleBinding", "rolebindings"),
        _kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", namespaced=False),
        CUSTOM_RESOURCE_DEFINITIONS,
        *(
            Resource(ours.group, ours.version, ours.plural, ours.kind, False, Untyped)
            for ours in (CLUSTER_BINDINGS, RESOURCE_LEASING_POLICIES)
        ),
    )
}


def resource_of(body: Json) -> Resource[Untyped]:
    """Where an object of ours lives."""
    found = _KINDS.get((body["apiVersion"], body["kind"]))
    if found is None:
        raise InvariantError("an object of an unknown kind", object=title(body))
    return found


class Applier:
    """One cluster; `force` takes fields from others who have set them."""

    def __init__(
        self, client: Client, *, domain: Domain, force: bool = False, clock: Clock | None = None
    ) -> None:
        self.client = client
        self._domain = domain
        self._force = force
        self._clock = clock or RealClock()

    async def apply(self, body: Json) -> Fate:
        """Make it so.

        :raises Conflict: somebody else has set a field of it to something else.
        """
        fate, _ = await self.put(body)
        return fate

    async def put(self, body: Json) -> tuple[Fate, Untyped]:
        """The same, and what is there then."""
        resource, meta = resource_of(body), body["metadata"]
        name, namespace = meta["name"], meta.get("namespace", "")
        before = await self._find(body)
        try:
            now = await self.client.patch(
                resource, name, ApplyPatch(body, force=self._force), namespace
            )
        except Conflict as error:
            hint = "; --force-conflicts takes these fields over"
            raise Conflict(f"{error}{hint}", status=error.status, reason=error.reason) from error
        if before is None:
            return Fate.CREATED, now
        if before.resource_version == now.resource_version:
            return Fate.UNCHANGED, now
        # Controllers write statuses all the time, which is no change of ours.
        after = await self._find(body)
        same = after is not None and _wanted(before) == _wanted(after)
        return (Fate.UNCHANGED if same else Fate.CHANGED), now

    async def apply_all(
        self, objects: Iterable[Json], tell: Callable[[Json, Fate], None] = lambda body, fate: None
    ) -> None:
        """All of them, in this order; a definition is in use before what comes next."""
        for body in objects:
            tell(body, await self.apply(body))
            if body["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
                await self.established(body["metadata"]["name"])

    async def established(self, definition: str) -> None:
        """Return once the server serves a kind.

        :raises ApiError: it does not, for long.
        """
        waited_s = 0.0
        while waited_s < _PATIENCE_S:
            found = await self.client.get(CUSTOM_RESOURCE_DEFINITIONS, definition, keep_raw=True)
            for condition in (found.content().get("status") or {}).get("conditions") or ():
                if (condition["type"], condition["status"]) == ("Established", "True"):
                    return
            await self._clock.sleep(_LOOK_S)
            waited_s += _LOOK_S
        raise ApiError(f"definition {definition} was not established within {_PATIENCE_S:g} s")

    async def remove(self, body: Json) -> Fate:
        """Take it out, if it is part of us, and of the same side: an account of a worker is called
        as one of a computing cluster."""
        there = await self._find(body)
        if there is None:
            return Fate.ABSENT
        if not self._is_ours(there, body):
            return Fate.FOREIGN
        try:
            await self.client.delete(resource_of(body), there.name, there.namespace, uid=there.uid)
        except NotFound:
            return Fate.ABSENT
        return Fate.REMOVED

    def _is_ours(self, there: Untyped, body: Json) -> bool:
        component = self._domain.component
        wanted = body["metadata"].get("labels", {}).get(component)
        is_part = there.labels.get(APP_PART_OF) == self._domain.product
        return is_part and there.labels.get(component) == wanted

    async def _find(self, body: Json) -> Untyped | None:
        meta = body["metadata"]
        try:
            return await self.client.get(
                resource_of(body), meta["name"], meta.get("namespace", ""), keep_raw=True
            )
        except NotFound:
            return None


def _wanted(there: Untyped) -> Json:
    """An object without what servers and controllers write about it."""
    content = there.content()
    told = ("resourceVersion", "managedFields")
    metadata = {key: value for key, value in content["metadata"].items() if key not in told}
    rest = {key: value for key, value in content.items() if key != "status"}
    return rest | {"metadata": metadata}
