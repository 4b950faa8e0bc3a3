"""Applies objects to a cluster with server-side apply, and deletes them.

A repeated apply changes nothing, and fields of other field managers cause a conflict unless forced.
Only objects with the labels of this installation are deleted, by UID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.group import APP_PART_OF, Domain
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import ApiError, Conflict, InvariantError, NotFound
from kubeocean.install.object_parts import RBAC, title
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["FIELD_MANAGER", "Applier", "ApplyResult", "resource_of"]

FIELD_MANAGER: Final = "kubeocean-install"
_POLL_S: Final = 0.1
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_ESTABLISH_TIMEOUT_S: Final = 30.0


class ApplyResult(StrEnum):
    """Effect of applying or removing an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    ABSENT = "absent"
    FOREIGN = "owned by others"


def _kind(
    group: str, kind: str, plural: str, *, version: str = "v1", namespaced: bool = True
) -> Resource[Untyped]:
    return Resource(group, version, plural, kind, namespaced, Untyped)


_KINDS: Final = {
    (each.api_version, each.kind): each
    for each in (
        _kind("", "ConfigMap", "configmaps"),
        _kind("", "Namespace", "namespaces", namespaced=False),
        _kind("", "ResourceQuota", "resourcequotas"),
        _kind("", "Secret", "secrets"),
        _kind("", "Service", "services"),
        _kind("", "ServiceAccount", "serviceaccounts"),
        *(
            _kind("admissionregistration.k8s.io", kind, plural, namespaced=False)
            for kind, plural in (
                ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
                ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
            )
        ),
        _kind("apps", "Deployment", "deployments"),
        _kind("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", version="v2"),
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
            for ours in (CLUSTER_BINDINGS, RESOURCE_LEASING_POLICIES, MEMBER_CLUSTERS)
        ),
    )
}


def resource_of(body: Json) -> Resource[Untyped]:
    """Return the API resource of an object's kind.

    :raises InvariantError: the kind is not one that installations have.
    """
    resource = _KINDS.get((body["apiVersion"], body["kind"]))
    if resource is None:
        raise InvariantError(
            "the kind is not one of those that installations contain", object=title(body)
        )
    return resource


class Applier:
    """Applies objects to one cluster; `force` overwrites fields of other field managers."""

    def __init__(
        self, client: Client, *, domain: Domain, force: bool = False, clock: Clock | None = None
    ) -> None:
        self.client = client
        self._domain = domain
        self._force = force
        self._clock = clock or RealClock()

    async def apply(self, body: Json) -> ApplyResult:
        """Apply the object server-side.

        :raises Conflict: another field manager owns a field with another value.
        """
        result, _ = await self.put(body)
        return result

    async def put(self, body: Json) -> tuple[ApplyResult, Untyped]:
        """Apply the object server-side; return the result and the stored object."""
        resource, meta = resource_of(body), body["metadata"]
        name, namespace = meta["name"], meta.get("namespace", "")
        before = await self.find(body)
        try:
            stored = await self.client.patch(
                resource, name, ApplyPatch(body, force=self._force), namespace
            )
        except Conflict as error:
            hint = "; --force-conflicts overwrites these fields"
            raise Conflict(f"{error}{hint}", status=error.status, reason=error.reason) from error
        if before is None:
            return ApplyResult.CREATED, stored
        if before.resource_version == stored.resource_version:
            return ApplyResult.UNCHANGED, stored
        # A controller may have written the status meanwhile.
        after = await self.find(body)
        same = after is not None and _without_status(before) == _without_status(after)
        return (ApplyResult.UNCHANGED if same else ApplyResult.CHANGED), stored

    async def apply_all(
        self,
        objects: Iterable[Json],
        report: Callable[[Json, ApplyResult], None] = lambda body, result: None,
    ) -> None:
        """Apply all objects in order; wait until each CustomResourceDefinition is established."""
        for body in objects:
            report(body, await self.apply(body))
            if body["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
                await self.established(body["metadata"]["name"])

    async def established(self, definition: str) -> None:
        """Wait until the API server has established a CustomResourceDefinition.

        :raises ApiError: it is not established within the time-out.
        """
        waited_s = 0.0
        while waited_s < _ESTABLISH_TIMEOUT_S:
            stored = await self.client.get(CUSTOM_RESOURCE_DEFINITIONS, definition, keep_raw=True)
            for condition in (stored.content().get("status") or {}).get("conditions") or ():
                if (condition["type"], condition["status"]) == ("Established", "True"):
                    return
            await self._clock.sleep(_POLL_S)
            waited_s += _POLL_S
        timeout_s = f"{_ESTABLISH_TIMEOUT_S:g} s"
        raise ApiError(
            f"CustomResourceDefinition {definition} was not established within {timeout_s}"
        )

    async def has_admission_policies(self) -> bool:
        """Whether the API server has ValidatingAdmissionPolicies, as from Kubernetes 1.30 on."""
        try:
            listing = await self.client.request_json("GET", _ADMISSION)
        except NotFound:
            return False
        served = {each.get("name") for each in listing.get("resources") or ()}
        return "validatingadmissionpolicies" in served

    async def remove(self, body: Json) -> ApplyResult:
        """Delete the stored object of `body` if its labels show that this installation owns it.

        The component label must match, too: an account in a worker has the same name as one in a
        computing cluster.
        """
        stored = await self.find(body)
        if stored is None:
            return ApplyResult.ABSENT
        if not self._is_ours(stored, body):
            return ApplyResult.FOREIGN
        try:
            await self.client.delete(
                resource_of(body), stored.name, stored.namespace, uid=stored.uid
            )
        except NotFound:
            return ApplyResult.ABSENT
        return ApplyResult.REMOVED

    def _is_ours(self, stored: Untyped, body: Json) -> bool:
        component = self._domain.component
        expected = body["metadata"].get("labels", {}).get(component)
        is_part = stored.labels.get(APP_PART_OF) == self._domain.product
        return is_part and stored.labels.get(component) == expected

    async def find(self, body: Json) -> Untyped | None:
        """Return the stored object with the kind and name of `body`; None if there is none."""
        meta = body["metadata"]
        try:
            return await self.client.get(
                resource_of(body), meta["name"], meta.get("namespace", ""), keep_raw=True
            )
        except NotFound:
            return None


def _without_status(stored: Untyped) -> Json:
    """Return an object without its status and the metadata that each write changes."""
    content = stored.content()
    volatile = ("resourceVersion", "managedFields")
    metadata = {key: value for key, value in content["metadata"].items() if key not in volatile}
    rest = {key: value for key, value in content.items() if key != "status"}
    return rest | {"metadata": metadata}
