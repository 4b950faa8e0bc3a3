"""Discovery: the resources that a server has, for kinds that are known only at run time.

A look-up is answered from the last read. A miss reads again, at most every few seconds, so that a
resource whose definition was just created is found. A program that knows that definitions have
changed calls `expire`, and the next look-up reads again. The objects of a discovered resource are
`Untyped` and go through the same client and informer as all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kubeocean.errors import ApiError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Resource, Untyped

__all__ = ["ApiResource", "Discovery"]

REREAD_S: Final = 5.0
EXPIRED_REREAD_S: Final = 1.0  # after `expire`: definitions may change one after the other
_AGGREGATED: Final = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
)


@dataclass(frozen=True, slots=True)
class ApiResource:
    """Resource of an API group in one version, as reported by discovery."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def untyped(self) -> Resource[Untyped]:
        """Return the resource for the client and the informer, with untyped objects."""
        return Resource(self.group, self.version, self.plural, self.kind, self.namespaced, Untyped)


class Discovery:
    """Resources that one cluster serves, read from its discovery documents."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or RealClock()
        self._known: tuple[ApiResource, ...] = ()
        self._read_at = float("-inf")
        self._expired = False
        self._reading = asyncio.Lock()

    def expire(self) -> None:
        """Read the resources again at the next look-up, at most once a second."""
        self._expired = True

    async def resources(self) -> tuple[ApiResource, ...]:
        """Return all resources, preferred versions first."""
        if not self._known:
            await self._read()
        return self._known

    async def refresh(self) -> bool:
        """Read all resources again now; return whether the resources have changed."""
        before = self._known
        self._read_at = float("-inf")
        await self._read()
        return set(self._known) != set(before)

    async def of_kind(self, api_version: str, kind: str) -> Resource[Untyped]:
        """Return the resource that serves objects of this kind.

        :raises NotFound: the server has no such kind.
        """
        resource = await self._find(lambda r: r.api_version == api_version and r.kind == kind)
        if resource is None:
            raise NotFound(f"the server has no kind {kind} in {api_version}")
        return resource.untyped()

    async def named(self, name: str, group: str = "", version: str = "") -> Resource[Untyped]:
        """Return the resource with this plural or short name, in the preferred version unless one
        is given.

        :raises NotFound: the server has no such resource.
        """
        resource = await self._find(
            lambda r: (
                r.group == group
                and (not version or r.version == version)
                and (r.plural == name or name in r.short_names)
            )
        )
        if resource is None:
            raise NotFound(f"the server has no resource {name}{'.' + group if group else ''}")
        return resource.untyped()

    async def find(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the resource that serves objects of this kind; None if the server has none."""
        return await self._find(lambda r: r.api_version == api_version and r.kind == kind)

    async def _find(self, wanted: _Wanted) -> ApiResource | None:
        if self._expired:
            await self._read()
        for resource in self._known:
            if wanted(resource):
                return resource
        before = self._known
        await self._read()
        if self._known is before:
            return None
        return next(filter(wanted, self._known), None)

    async def _read(self) -> None:
        async with self._reading:
            least_s = EXPIRED_REREAD_S if self._expired else REREAD_S
            if self._clock.monotonic() - self._read_at < least_s:
                return
            self._expired = False  # before reading: definitions may change meanwhile
            try:
                core = await self._read_root("/api")
                self._known = (*core, *await self._read_root("/apis"))
            except ApiError:
                self._expired = True
                raise
            self._read_at = self._clock.monotonic()

    async def _read_root(self, root: str) -> list[ApiResource]:
        body = await self._client.request("GET", root, accept=_AGGREGATED)
        answer = _decode_root(body)
        if answer.kind == "APIGroupDiscoveryList":
            return [resource for group in answer.items for resource in group.resources()]
        return await self._read_one_by_one(root, answer)

    async def _read_one_by_one(self, root: str, answer: _Root) -> list[ApiResource]:
        """Return the resources of an older server, which has one discovery document for each group
        and version."""
        if root == "/api":
            paths = [("", version, f"/api/{version}") for version in answer.versions]
        else:
            paths = [
                (group.name, entry.version, f"/apis/{entry.group_version}")
                for group in answer.groups
                for entry in group.in_order()
            ]
        return [resource for path in paths for resource in await self._read_list(*path)]

    async def _read_list(self, group: str, version: str, path: str) -> list[ApiResource]:
        try:
            body = await self._client.request("GET", path)
        except ApiError:
            return []  # an aggregated API server that is down hides its own group only
        return _legacy(group, version, _decode_list(body).resources)


_Wanted: TypeAlias = Callable[[ApiResource], bool]


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the structs of discovery documents."""


class _ResponseKind(_Camel, frozen=True):
    kind: str = ""


class _Sub(_Camel, frozen=True):
    subresource: str = ""


class _Served(_Camel, frozen=True, rename="camel"):
    resource: str
    scope: str = ""
    response_kind: _ResponseKind | None = None
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    subresources: tuple[_Sub, ...] = ()


class _ServedVersion(_Camel, frozen=True):
    version: str
    resources: tuple[_Served, ...] = ()


class _GroupName(_Camel, frozen=True):
    name: str = ""


class _Group(_Camel, frozen=True):
    metadata: _GroupName = _GroupName()
    versions: tuple[_ServedVersion, ...] = ()

    def resources(self) -> Iterable[ApiResource]:
        for version in self.versions:
            for served in version.resources:
                yield ApiResource(
                    self.metadata.name,
                    version.version,
                    served.resource,
                    served.response_kind.kind if served.response_kind else "",
                    served.scope == "Namespaced",
                    frozenset(served.verbs),
                    served.short_names,
                    tuple(sub.subresource for sub in served.subresources),
                )


class _LegacyVersion(_Camel, frozen=True, rename="camel"):
    group_version: str
    version: str


class _LegacyGroup(_Camel, frozen=True, rename="camel"):
    name: str
    versions: tuple[_LegacyVersion, ...] = ()
    preferred_version: _LegacyVersion | None = None

    def in_order(self) -> list[_LegacyVersion]:
        return sorted(self.versions, key=lambda entry: entry != self.preferred_version)


class _Root(_Camel, frozen=True):
    kind: str = ""
    items: tuple[_Group, ...] = ()
    versions: tuple[str, ...] = ()
    groups: tuple[_LegacyGroup, ...] = ()


class _LegacyResource(_Camel, frozen=True, rename="camel"):
    name: str
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()


class _LegacyList(_Camel, frozen=True):
    resources: tuple[_LegacyResource, ...] = ()


_decode_root = msgspec.json.Decoder(_Root).decode
_decode_list = msgspec.json.Decoder(_LegacyList).decode


def _legacy(group: str, version: str, listed: Iterable[_LegacyResource]) -> list[ApiResource]:
    subresources: dict[str, list[str]] = {}
    for entry in listed:
        plural, _, sub = entry.name.partition("/")
        if sub:
            subresources.setdefault(plural, []).append(sub)
    return [
        ApiResource(
            group,
            version,
            entry.name,
            entry.kind,
            entry.namespaced,
            frozenset(entry.verbs),
            entry.short_names,
            tuple(subresources.get(entry.name, ())),
        )
        for entry in listed
        if "/" not in entry.name
    ]
