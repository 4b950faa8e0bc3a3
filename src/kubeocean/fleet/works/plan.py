"""Plan of a binding's Works: one for each resource snapshot of its release.

Labels and annotations of a Work record its release, so that an up-to-date Work is recognized
without reading its manifests. Manifests that another program changed are recognized by the
generation of the Work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.hashes import names_hash
from kubeocean.api.fleet.strategies import ApplyStrategy, ReportBackStrategy
from kubeocean.fleet.snapshots.plan import Group
from kubeocean.fleet.works.views import CachedWork, binding_of_work
from kubeocean.runtime.objects import Key, Untyped

__all__ = [
    "DesiredWork",
    "WorksPlan",
    "belong_to_release",
    "desired_works",
    "plan_works",
    "work_annotations",
    "work_labels",
]


class DesiredWork(NamedTuple):
    """A Work that a binding needs."""

    name: str
    snapshot: Untyped
    labels: dict[str, str]
    annotations: dict[str, str]
    apply_strategy: ApplyStrategy
    report_back: ReportBackStrategy


@dataclass(frozen=True, slots=True)
class WorksPlan:
    """Changes of a binding's Works to write; False if there are none."""

    create: tuple[DesiredWork, ...] = ()
    replace: tuple[tuple[CachedWork, DesiredWork], ...] = ()  # get other manifests
    adjust: tuple[tuple[CachedWork, DesiredWork], ...] = ()  # keep their manifests
    delete: tuple[CachedWork, ...] = ()
    blocked: tuple[CachedWork, ...] = ()  # have a desired name, and belong to another binding

    def __bool__(self) -> bool:
        return bool(self.create or self.replace or self.adjust or self.delete)


def work_labels(placement: Key, binding: Binding, index: int) -> dict[str, str]:
    """Return the labels of a binding's Work: placement, binding and snapshot index."""
    labels = {
        names.LABEL_PARENT_BINDING: binding.name,
        names.LABEL_PARENT_PLACEMENT: placement.name,
        names.LABEL_PARENT_SNAPSHOT_INDEX: str(index),
    }
    if placement.namespace:
        labels[names.LABEL_PARENT_NAMESPACE] = placement.namespace
    return labels


def work_annotations(binding: Binding) -> dict[str, str]:
    """Return the annotations of a binding's Works, which record the release."""
    spec = binding.spec
    return {
        names.ANNOTATION_PARENT_SNAPSHOT: spec.resource_snapshot_name,
        names.ANNOTATION_CLUSTER_OVERRIDES_HASH: names_hash(
            spec.cluster_resource_override_snapshots
        ),
        names.ANNOTATION_OVERRIDES_HASH: names_hash(spec.resource_override_snapshots),
    }


def desired_works(
    placement: Key, binding: Binding, group: Group, report_back: ReportBackStrategy
) -> tuple[DesiredWork, ...]:
    """Return the Works that a binding's release needs; that of the master snapshot is first."""
    labels = work_labels(placement, binding, group.index)
    annotations = work_annotations(binding)

    def name_of(snapshot: Untyped) -> str:
        sub_index = names.parse_index(snapshot.annotations, names.ANNOTATION_SUB_INDEX)
        if sub_index is None:
            return names.work(placement)
        return names.sub_work(placement, sub_index)

    return tuple(
        DesiredWork(
            name_of(snapshot),
            snapshot,
            labels,
            annotations,
            binding.spec.apply_strategy,
            report_back,
        )
        for snapshot in group.members
    )


def plan_works(
    binding: Key,
    desired: Iterable[DesiredWork],
    existing: Iterable[CachedWork],
    named: Callable[[str], CachedWork | None],
    is_edited: Callable[[CachedWork], bool] = lambda _: False,
) -> WorksPlan:
    """Compare the Works of a binding with those that it needs.

    `existing` are the binding's own Works, `named` returns any Work of the cluster by its name, and
    `is_edited` whether another program changed the spec of a Work.
    """
    wanted = {each.name: each for each in desired}
    create: list[DesiredWork] = []
    replace: list[tuple[CachedWork, DesiredWork]] = []
    adjust: list[tuple[CachedWork, DesiredWork]] = []
    blocked: list[CachedWork] = []
    for each in wanted.values():
        work = named(each.name)
        if work is None:
            create.append(each)
        elif binding_of_work(work) != binding or work.deleting:
            blocked.append(work)
        elif (
            is_edited(work)
            or _has_other(work.annotations, each.annotations)
            or work.labels.get(names.LABEL_PARENT_SNAPSHOT_INDEX)
            != each.labels[names.LABEL_PARENT_SNAPSHOT_INDEX]
        ):
            replace.append((work, each))
        elif (
            _has_other(work.labels, each.labels)
            or work.spec.apply_strategy != each.apply_strategy
            or work.spec.report_back_strategy != each.report_back
        ):
            adjust.append((work, each))
    obsolete = [work for work in existing if work.name not in wanted and not work.deleting]
    return WorksPlan(tuple(create), tuple(replace), tuple(adjust), tuple(obsolete), tuple(blocked))


def _has_other(present: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return any(present.get(name) != value for name, value in wanted.items())


def belong_to_release(works: Iterable[CachedWork], binding: Binding) -> bool:
    """Whether `works` is not empty, and all of them have the release of the binding."""
    works = list(works)
    annotations = work_annotations(binding)
    return bool(works) and not any(_has_other(work.annotations, annotations) for work in works)
