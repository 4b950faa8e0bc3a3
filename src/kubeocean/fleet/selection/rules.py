"""Rules: namespaces, kinds and objects that are never placed.

Namespaces of Kubernetes and of the fleet are not placed. Kinds are left out that make sense only in
their own cluster (pods, nodes, events, leases, metrics) and the fleet's own kinds, except
envelopes. Of other kinds, objects are left out that a controller of the hub made from another
object: a controller of the member will make them in the member.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from kubeocean.api.fleet.clusters import CLUSTER_GROUP
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.fleet.works import CLUSTER_RESOURCE_ENVELOPES, RESOURCE_ENVELOPES
from kubeocean.errors import ConfigError
from kubeocean.runtime.objects import GroupVersionKind, Json, Key

__all__ = ["ApiFilter", "NamespaceFilter", "is_placeable"]

_RESERVED_PREFIXES: Final = ("kube-", "fleet-")
_ENVELOPES: Final = frozenset({CLUSTER_RESOURCE_ENVELOPES.kind, RESOURCE_ENVELOPES.kind})
_NEVER_GROUPS: Final = frozenset(
    {
        CLUSTER_GROUP,
        NETWORKING_GROUP,
        "coordination.k8s.io",
        "events.k8s.io",
        "metrics.k8s.io",
    }
)
_NEVER_KINDS: Final = frozenset({("", "Event"), ("", "Node"), ("", "Pod")})


@dataclass(frozen=True, slots=True)
class NamespaceFilter:
    """Namespaces that are not placed: reserved ones, `default`, and those of the settings."""

    skipped: frozenset[str] = frozenset()

    def allows(self, namespace: str) -> bool:
        """Whether a ClusterResourcePlacement may place the namespace."""
        return namespace != "default" and self.allows_objects(namespace)

    def allows_objects(self, namespace: str) -> bool:
        """Whether a ResourcePlacement may place objects of the namespace; of `default` it may."""
        return not (namespace.startswith(_RESERVED_PREFIXES) or namespace in self.skipped)


@dataclass(frozen=True, slots=True)
class ApiFilter:
    """Kinds that are placed: all but those never placed and those that the settings exclude.

    Each entry is a group, version and kind of which `*` matches everything. With `allowed` only
    kinds that match an entry are placed.
    """

    skipped: tuple[GroupVersionKind, ...] = ()
    allowed: tuple[GroupVersionKind, ...] = ()

    @classmethod
    def parse(cls, *, skipped: str = "", allowed: str = "") -> ApiFilter:
        """Read `--skipped-propagating-apis` and `--allowed-propagating-apis`.

        Both are lists of `GROUP`, `GROUP/VERSION`, `GROUP/KIND` or `GROUP/VERSION/KIND,KIND`,
        separated by semicolons; the core group is written `v1/KIND,KIND`.

        :raises ConfigError: an entry has another form, or both lists are given.
        """
        if skipped and allowed:
            raise ConfigError(
                "cannot be set together with --skipped-propagating-apis; set one of the two",
                field="allowed-propagating-apis",
                value=allowed,
            )
        return cls(
            _parse(skipped, "skipped-propagating-apis"), _parse(allowed, "allowed-propagating-apis")
        )

    def allows(self, kind: GroupVersionKind) -> bool:
        if kind.group in _NEVER_GROUPS or (kind.group, kind.kind) in _NEVER_KINDS:
            return False
        if kind.group == PLACEMENT_GROUP and kind.kind not in _ENVELOPES:
            return False
        if self.allowed:
            return _matches(kind, self.allowed)
        return not _matches(kind, self.skipped)


def _matches(kind: GroupVersionKind, entries: tuple[GroupVersionKind, ...]) -> bool:
    return any(
        entry.group in ("*", kind.group)
        and entry.version in ("*", kind.version)
        and entry.kind in ("*", kind.kind)
        for entry in entries
    )


def _parse(text: str, field: str) -> tuple[GroupVersionKind, ...]:
    entries: list[GroupVersionKind] = []
    for token in filter(None, (part.strip() for part in text.split(";"))):
        match token.split("/"):
            case [group]:
                entries.append(GroupVersionKind(group, "*", "*"))
            case ["v1", kinds]:
                entries += [GroupVersionKind("", "v1", kind) for kind in kinds.split(",")]
            case [group, version] if _is_version(version):
                entries.append(GroupVersionKind(group, version, "*"))
            case [group, kind]:
                entries.append(GroupVersionKind(group, "*", kind))
            case [group, version, kinds]:
                entries += [GroupVersionKind(group, version, kind) for kind in kinds.split(",")]
            case _:
                raise ConfigError(
                    "must be GROUP, GROUP/VERSION or GROUP/VERSION/KIND", field=field, value=token
                )
    return tuple(entries)


def _is_version(text: str) -> bool:
    return len(text) > 1 and text[0] == "v" and text[1].isdigit()


def is_placeable(obj: Json, *, hub_runs_workloads: bool, services: Container[Key]) -> bool:
    """Whether an object of an allowed kind is placed.

    `hub_runs_workloads` (`--enable-workload`) means that PersistentVolumeClaims of the hub are
    bound to its volumes, so that none is placed. `services` are the Services of the hub: Endpoints
    of the same name belong to them and are not placed.
    """
    metadata: Json = obj.get("metadata") or {}
    if metadata.get("deletionTimestamp"):
        return False
    name = metadata.get("name", "")
    match GroupVersionKind.of(obj):
        case GroupVersionKind("apps", _, "ReplicaSet" | "ControllerRevision"):
            return not metadata.get("ownerReferences")
        case GroupVersionKind("", _, "ConfigMap"):
            return bool(name != "kube-root-ca.crt")
        case GroupVersionKind("", _, "ServiceAccount"):
            return bool(name != "default")
        case GroupVersionKind("", _, "Secret"):
            return obj.get("type") != "kubernetes.io/service-account-token"
        case GroupVersionKind("", _, "PersistentVolumeClaim"):
            return not hub_runs_workloads
        case GroupVersionKind("", _, "Endpoints"):
            return Key(metadata.get("namespace", ""), name) not in services
        case GroupVersionKind("discovery.k8s.io", _, "EndpointSlice"):
            labels = metadata.get("labels") or {}
            return "endpointslice.kubernetes.io/managed-by" not in labels
        case _:
            return True
