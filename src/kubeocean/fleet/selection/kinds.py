"""Kinds that the hub serves, as far as they can be selected.

The discovery of an API server may be incomplete while the server starts, or while an aggregated
server does not answer. A kind that is briefly missing in discovery must not look as if all of its
objects were deleted: such a kind counts as gone only if its CustomResourceDefinition or its
APIService is gone. A program that has just started does not know such kinds; of a placement it
knows the kinds of the objects that were selected last.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from kubeocean.runtime.objects import GroupVersionKind, Resource, Untyped

__all__ = ["ServedKinds"]


@dataclass(frozen=True, slots=True)
class ServedKinds:
    """The kinds that the hub serves; `defined` are those of CustomResourceDefinitions."""

    resources: Mapping[GroupVersionKind, Resource[Untyped]] = field(default_factory=dict)
    preferred: frozenset[GroupVersionKind] = frozenset()  # of each kind one version
    defined: frozenset[GroupVersionKind] = frozenset()

    @property
    def namespaced(self) -> dict[GroupVersionKind, bool]:
        """Map each kind to whether its objects are namespaced."""
        return {kind: resource.namespaced for kind, resource in self.resources.items()}

    def updated(
        self,
        served: Iterable[Resource[Untyped]],
        definitions: Container[str],
        services: Container[str],
    ) -> ServedKinds:
        """Return the kinds after discovery was read again; `served` has preferred versions first.

        :param definitions: names of the hub's CustomResourceDefinitions.
        :param services: names of its APIServices, which API servers make for each of their groups.
        """
        resources: dict[GroupVersionKind, Resource[Untyped]] = {}
        preferred: dict[tuple[str, str], GroupVersionKind] = {}
        for resource in served:
            kind = _kind(resource)
            resources.setdefault(kind, resource)
            preferred.setdefault((kind.group, kind.kind), kind)
        for kind, resource in self.resources.items():
            if kind not in resources and self._still_exists(kind, resource, definitions, services):
                resources[kind] = resource
                if kind in self.preferred:
                    preferred.setdefault((kind.group, kind.kind), kind)
        return ServedKinds(
            resources,
            frozenset(preferred.values()),
            frozenset(
                kind for kind, each in resources.items() if _definition_name(each) in definitions
            ),
        )

    def undiscovered(self, definitions: Iterable[str]) -> list[str]:
        """Return the CustomResourceDefinitions whose kind is missing in discovery."""
        known = {_definition_name(resource) for resource in self.resources.values()}
        return sorted(name for name in definitions if name not in known)

    def unread(
        self,
        kinds: Iterable[GroupVersionKind],
        definitions: Collection[str],
        services: Container[str],
    ) -> list[GroupVersionKind]:
        """Return which of these kinds discovery omits although the hub may still serve them.

        A kind may be served if a CustomResourceDefinition of its group has not been discovered, or
        if nothing of an APIService has, as of an aggregated server that does not answer.
        """
        missing = [kind for kind in kinds if kind not in self.resources]
        if not missing:
            return []
        groups = {name.partition(".")[2] for name in self.undiscovered(definitions)}
        versions = {(each.group, each.version) for each in self.resources}
        return [
            kind
            for kind in missing
            if kind.group in groups
            or (
                (kind.group, kind.version) not in versions
                and f"{kind.version}.{kind.group}" in services
            )
        ]

    def _still_exists(
        self,
        kind: GroupVersionKind,
        resource: Resource[Untyped],
        definitions: Container[str],
        services: Container[str],
    ) -> bool:
        if f"{kind.version}.{kind.group}" not in services:
            return False
        return kind not in self.defined or _definition_name(resource) in definitions


def _kind(resource: Resource[Untyped]) -> GroupVersionKind:
    return GroupVersionKind(resource.group, resource.version, resource.kind)


def _definition_name(resource: Resource[Untyped]) -> str:
    return f"{resource.plural}.{resource.group}"
