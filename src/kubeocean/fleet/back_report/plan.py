"""Plan of back reports: which objects of the hub get a status that a member reports.

A status is written onto an object of the hub only if

- the placement picks exactly one cluster, and a Work of that cluster reports the status;
- the placement selects the object now: a member may write anything into the status of its Works,
  and must not choose objects of the hub;
- no other placement that reports back selects the object, or both would overwrite each other;
- the hub's own API server and controllers do not act on the status of the object's kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.conditions import STATUS_REPORTED_BACK, PlacementReason
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement, ResourceIdentifier
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.works import WorkResourceIdentifier
from kubeocean.fleet.steps import settle
from kubeocean.fleet.works.views import CachedWork
from kubeocean.runtime.objects import Condition, GroupVersionKind, Json, Key, find_condition

__all__ = [
    "BackReport",
    "Claims",
    "Original",
    "Report",
    "condition_type",
    "has_same_claims",
    "kept_condition",
    "not_on_one_cluster",
    "picked_clusters",
    "reporting_binding",
    "reports_of",
    "result_of",
    "status_patch",
    "without_back_report",
]

# Kinds whose status has effects in the hub's cluster: a quota's usage decides on requests, a
# volume's phase on its deletion, a definition's stored versions on its migration
_OF_THE_HUB: Final = frozenset(
    {
        ("", "Namespace"),
        ("", "PersistentVolume"),
        ("", "ResourceQuota"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("apiregistration.k8s.io", "APIService"),
        ("certificates.k8s.io", "CertificateSigningRequest"),
        ("storage.k8s.io", "VolumeAttachment"),
    }
)
_Name: TypeAlias = tuple[str, str, Key]  # group, kind, and key of an object
_LONGEST_ERROR: Final = 1000  # characters; a server may repeat a whole object in its answer


class Original(NamedTuple):
    """Kind, namespace and name of an object of the hub that a placement selects."""

    kind: GroupVersionKind
    key: Key

    @classmethod
    def of(cls, identifier: ResourceIdentifier | WorkResourceIdentifier) -> Original:
        return cls(
            GroupVersionKind(identifier.group, identifier.version, identifier.kind),
            Key(identifier.namespace, identifier.name),
        )

    @property
    def has_status_of_the_hub(self) -> bool:
        """Whether the hub's own API server or controllers act on the status of the object."""
        return (self.kind.group, self.kind.kind) in _OF_THE_HUB

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.key}"


class Report(NamedTuple):
    """The hash of the status that a Work reports for an object of the hub, and that Work."""

    digest: str
    work: Key


class BackReport(NamedTuple):
    """Status, reason and message of a placement's condition about its back reports."""

    status: str
    reason: str
    message: str

    def condition(self, placement: Placement, now: str) -> Condition:
        """Return the condition about back reports, for this generation of the placement."""
        type_, generation = condition_type(placement), placement.metadata.generation
        condition = Condition(
            type_, self.status, self.reason, self.message, observed_generation=generation
        )
        (settled,) = settle(placement.status.conditions, (condition,), now)
        return settled


def condition_type(placement: Placement) -> str:
    """Return the type of the condition about the back reports of a placement."""
    return f"{scope_of(placement.key).prefix}{STATUS_REPORTED_BACK}"


def kept_condition(placement: Placement) -> Condition | None:
    """Return the placement's last condition about back reports, until a new one is known."""
    return find_condition(placement.status.conditions, condition_type(placement))


def without_back_report(
    placement: Placement, conditions: Iterable[Condition]
) -> tuple[Condition, ...]:
    """Return conditions of a placement without the one about its back reports."""
    type_ = condition_type(placement)
    return tuple(each for each in conditions if each.type != type_)


def picked_clusters(snapshot: PolicySnapshot) -> tuple[str, ...]:
    """Return the clusters that the scheduler has picked."""
    return tuple(each.cluster_name for each in snapshot.status.target_clusters if each.selected)


def reporting_binding(
    bindings: Iterable[Binding], cluster: str, policy_snapshot: str
) -> Binding | None:
    """Return the binding of the only picked cluster; None before it is bound."""
    return next(
        (
            binding
            for binding in bindings
            if binding.spec.target_cluster == cluster
            and binding.spec.scheduling_policy_snapshot_name == policy_snapshot
            and binding.spec.state == BindingState.BOUND
            and not binding.deleting
        ),
        None,
    )


def reports_of(
    works: Iterable[CachedWork], cluster: str, selected: Collection[Original]
) -> dict[Original, Report]:
    """Return the statuses that Works of the cluster report for selected objects.

    Works of other clusters do not count, whatever binding their labels name.
    """
    namespace = names.member_namespace(cluster)
    return {
        original: Report(each.digest, work.key)
        for work in works
        if work.namespace == namespace and not work.deleting
        for each in work.reported
        if (original := Original.of(each.identifier)) in selected
        and not original.has_status_of_the_hub
    }


def status_patch(uid: str, version: str, status: Any) -> list[Json]:
    """Return the JSON patch that replaces the whole status of this version of an object."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/status", "value": status},
    ]


# Results


def not_on_one_cluster(count: int) -> BackReport:
    """Return the result for a placement that picks no cluster, or several."""
    clusters = "no cluster is picked" if not count else f"{count} clusters are picked"
    message = (
        f"A status is written onto the hub's objects only from exactly one cluster; {clusters}"
    )
    return BackReport("False", PlacementReason.NOT_ON_ONE_CLUSTER, message)


def result_of(reports: Collection[Original], errors: Mapping[Original, str]) -> BackReport:
    """Return the result of the back reports of a placement; `errors` are statuses not written."""
    if not errors:
        count = "1 object" if len(reports) == 1 else f"{len(reports)} objects"
        message = f"The status of {count} is written onto the hub's objects"
        return BackReport("True", PlacementReason.REPORTED_BACK, message)
    first, further = min(errors), len(errors) - 1
    message = f"The status of {first} is not written: {errors[first][:_LONGEST_ERROR]}"
    if further:
        message += f"; nor that of {further} more"
    return BackReport("False", PlacementReason.REPORT_BACK_FAILED, message)


# Several placements of one object


class Claims:
    """Placements that report back, by the objects that they have placed.

    Claims follow from the spec and status of placements, which only the hub and its users write.
    """

    def __init__(self) -> None:
        self._by_placement: dict[Key, frozenset[_Name]] = {}
        self._placements: dict[_Name, set[Key]] = {}

    def update(self, key: Key, placement: Placement | None) -> set[Key]:
        """Record the claims of a placement; return the other placements that a change concerns."""
        before = self._by_placement.get(key, frozenset())
        after = frozenset(map(_name, _claimed(placement))) if placement else frozenset()
        if after:
            self._by_placement[key] = after
        else:
            self._by_placement.pop(key, None)
        others: set[Key] = set()
        for name in before - after:
            holders = self._placements[name]
            holders.discard(key)
            others |= holders
            if not holders:
                del self._placements[name]
        for name in after - before:
            holders = self._placements.setdefault(name, set())
            others |= holders
            holders.add(key)
        return others - {key}

    def has(self, key: Key, original: Original) -> bool:
        """Whether a placement claims an object."""
        return key in self._placements.get(_name(original), ())

    def others(self, key: Key, original: Original) -> set[Key]:
        """Return the placements other than `key` that claim an object."""
        return self._placements.get(_name(original), set()) - {key}


def has_same_claims(old: Placement, new: Placement) -> bool:
    """Whether a change of a placement leaves its claims as they are."""
    if _may_claim(old) != _may_claim(new):
        return False
    return not _may_claim(new) or old.status.selected_resources == new.status.selected_resources


def _may_claim(placement: Placement) -> bool:
    if placement.deleting or not placement.spec.strategy.report_back_strategy.is_for_originals:
        return False
    return any(entry.cluster_name for entry in placement.status.placement_statuses)


def _claimed(placement: Placement) -> Iterable[Original]:
    return map(Original.of, placement.status.selected_resources) if _may_claim(placement) else ()


def _name(original: Original) -> _Name:
    """Return the identity of an object, whatever the version of its kind."""
    return original.kind.group, original.kind.kind, original.key
