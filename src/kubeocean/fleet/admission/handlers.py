"""Handlers of the webhooks: read the objects that a decision depends on, and decide.

The guard rail gets many requests and has one second for each: its handler reads the identities of
members from a cache. All other webhooks are about objects that users write now and then; their
handlers read from the API server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from kubeocean.api.fleet.clusters import CLUSTER_GROUP, MEMBER_CLUSTERS
from kubeocean.api.fleet.names import member_namespace
from kubeocean.api.fleet.networking import INTERNAL_SERVICE_EXPORTS
from kubeocean.api.fleet.overrides import (
    CLUSTER_RESOURCE_OVERRIDES,
    RESOURCE_OVERRIDES,
    ClusterResourceOverride,
    ResourceOverride,
)
from kubeocean.api.fleet.placements import CLUSTER_RESOURCE_PLACEMENTS, PLACEMENT_GROUP, Placement
from kubeocean.api.fleet.schema import V1BETA1
from kubeocean.errors import NotFound
from kubeocean.fleet.admission.configurations import (
    GUARD_RAIL_PATH,
    MUTATING_PATH,
    validating_path,
)
from kubeocean.fleet.admission.defaults import decide_defaults
from kubeocean.fleet.admission.evictions import decide_budget, decide_eviction, evicted_placement
from kubeocean.fleet.admission.guard_rail import GuardRail
from kubeocean.fleet.admission.members import decide_member, needs_service_exports
from kubeocean.fleet.admission.overrides import decide_override, summary_of
from kubeocean.fleet.admission.placements import decide_placement, needs_kinds, selected_kinds
from kubeocean.fleet.admission.reviews import Decision, GroupVersionKind, Request
from kubeocean.fleet.admission.workloads import decide_workload
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.discovery import Discovery
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, Resource

__all__ = ["Handler", "Handlers"]

Handler: TypeAlias = Callable[[Request], Awaitable[Decision]]


class _Identity(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _MemberSpec(msgspec.Struct, frozen=True, gc=False):
    identity: _Identity = _Identity()


class _Member(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """The part of a MemberCluster that the guard rail reads."""

    spec: _MemberSpec = _MemberSpec()


_MEMBERS: Final = Resource(
    MEMBER_CLUSTERS.group,
    MEMBER_CLUSTERS.version,
    MEMBER_CLUSTERS.plural,
    MEMBER_CLUSTERS.kind,
    False,
    _Member,
)


class Handlers:
    """Handlers of the webhooks that one replica serves, by URL path.

    - `guard_rail`: None if the guard rail is off.
    - `networking`: whether exported services prevent the deletion of a MemberCluster.
    """

    def __init__(
        self,
        client: Client,
        *,
        guard_rail: GuardRail | None = None,
        networking: bool = False,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._guard_rail = guard_rail
        self._networking = networking
        self._discovery = Discovery(client, clock=clock)
        self.members: Informer[_Member] | None = None
        if guard_rail is not None:
            self.members = Informer(client, _MEMBERS, clock=clock, metrics=metrics)

    @property
    def ready(self) -> bool:
        """Whether the cache of MemberClusters is filled."""
        return self.members is None or self.members.has_synced

    @property
    def by_path(self) -> Mapping[str, Handler]:
        """Return the webhook handlers by URL path."""

        def path(kind: str, group: str = PLACEMENT_GROUP, version: str = V1BETA1) -> str:
            return validating_path(group, version, kind)

        return {
            MUTATING_PATH: self._defaults,
            path("clusterresourceplacement"): self._placement,
            path("clusterresourceoverride"): self._cluster_override,
            path("resourceoverride"): self._override,
            path("clusterresourceplacementeviction"): self._eviction,
            path("clusterresourceplacementdisruptionbudget"): self._budget,
            path("membercluster", CLUSTER_GROUP): self._member,
            path("pod", "", "v1"): self._workload,
            path("replicaset", "apps", "v1"): self._workload,
            path("poddisruptionbudget", "policy", "v1"): self._workload,
            **({GUARD_RAIL_PATH: self._guarded} if self._guard_rail is not None else {}),
        }

    async def _defaults(self, request: Request) -> Decision:
        return decide_defaults(request)

    async def _workload(self, request: Request) -> Decision:
        return decide_workload(request)

    async def _guarded(self, request: Request) -> Decision:
        assert self._guard_rail is not None
        return self._guard_rail.decide(request, self._identity_of)

    def _identity_of(self, member: str) -> str | None:
        assert self.members is not None
        cached = self.members.get(Key("", member))
        return cached.spec.identity.name if cached is not None else None

    async def _placement(self, request: Request) -> Decision:
        kinds: dict[GroupVersionKind, bool | None] = {}
        if needs_kinds(request):
            for kind in selected_kinds(request.decoded(Placement)):
                kinds[kind] = await self._is_namespaced(kind)
        return decide_placement(request, kinds)

    async def _is_namespaced(self, kind: GroupVersionKind) -> bool | None:
        api_version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        resource = await self._discovery.find(api_version, kind.kind)
        return resource.namespaced if resource is not None else None

    async def _cluster_override(self, request: Request) -> Decision:
        stored = await self._client.list(CLUSTER_RESOURCE_OVERRIDES)
        return decide_override(
            request, ClusterResourceOverride, [summary_of(each) for each in stored.items]
        )

    async def _override(self, request: Request) -> Decision:
        stored = await self._client.list(RESOURCE_OVERRIDES, request.namespace)
        return decide_override(
            request, ResourceOverride, [summary_of(each) for each in stored.items]
        )

    async def _eviction(self, request: Request) -> Decision:
        return decide_eviction(await self._find_placement(evicted_placement(request)))

    async def _budget(self, request: Request) -> Decision:
        return decide_budget(request, await self._find_placement(request.name))

    async def _find_placement(self, name: str) -> Placement | None:
        try:
            return await self._client.get(CLUSTER_RESOURCE_PLACEMENTS, name) if name else None
        except NotFound:
            return None

    async def _member(self, request: Request) -> Decision:
        exports: list[str] = []
        if self._networking and needs_service_exports(request):
            exports = await self._service_exports(request.name)
        return decide_member(request, exports)

    async def _service_exports(self, member: str) -> list[str]:
        """Return the Services that a member exports, without exports that are being deleted."""
        stored = await self._client.list(INTERNAL_SERVICE_EXPORTS, member_namespace(member))
        return [
            _service_name(each.spec) or str(each.key) for each in stored.items if not each.deleting
        ]


def _service_name(spec: object) -> str:
    """Return the Service of an InternalServiceExport; empty if the spec names no Service."""
    reference = spec.get("serviceReference") if isinstance(spec, dict) else None
    name = reference.get("namespacedName") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else ""
