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
    "WorkSettings",
    "WorksPlan",
    "belong_to_release",
    "desired_works",
    "has_envelopes",
    "plan_kept_works",
    "plan_works",
    "work_annotations",
    "work_labels",
]


class WorkSettings(NamedTuple):
    """Metadata and strategies of a Work, without its manifests."""

    labels: dict[str, str]
    annotations: dict[str, str]
    apply_strategy: ApplyStrategy
    report_back: ReportBackStrategy

    def differ_from(self, work: CachedWork) -> bool:
        """Whether a Work has other settings."""
        return (
            _has_other(work.labels, self.labels)
            or _has_other(work.annotations, self.annotations)
            or work.spec.apply_strategy != self.apply_strategy
            or work.spec.report_back_strategy != self.report_back
        )


class DesiredWork(NamedTuple):
    """A Work that a binding needs."""

    name: str
    snapshot: Untyped
    settings: WorkSettings


@dataclass(frozen=True, slots=True)
class WorksPlan:
    """Changes of a binding's Works to write; False if there are none."""

    create: tuple[DesiredWork, ...] = ()
    replace: tuple[tuple[CachedWork, DesiredWork], ...] = ()  # get other manifests
    adjust: tuple[tuple[CachedWork, WorkSettings], ...] = ()  # keep their manifests
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
    settings = WorkSettings(
        work_labels(placement, binding, group.index),
        work_annotations(binding),
        binding.spec.apply_strategy,
        report_back,
    )

    def name_of(snapshot: Untyped) -> str:
        sub_index = names.parse_index(snapshot.annotations, names.ANNOTATION_SUB_INDEX)
        if sub_index is None:
            return names.work(placement)
        return names.sub_work(placement, sub_index)

    return tuple(DesiredWork(name_of(snapshot), snapshot, settings) for snapshot in group.members)


def has_envelopes(works: Iterable[CachedWork]) -> bool:
    """Whether another implementation has made Works for the content of envelopes.

    This hub does not unpack envelopes, and would delete such Works as obsolete.
    """
    return any(names.LABEL_ENVELOPE_TYPE in work.labels for work in works)


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
    adjust: list[tuple[CachedWork, WorkSettings]] = []
    blocked: list[CachedWork] = []
    for each in wanted.values():
        work, settings = named(each.name), each.settings
        if work is None:
            create.append(each)
        elif work.deleting or not _is_of(work, binding, settings):
            blocked.append(work)
        elif (
            is_edited(work)
            or _has_other(work.annotations, settings.annotations)
            or work.labels.get(names.LABEL_PARENT_SNAPSHOT_INDEX)
            != settings.labels[names.LABEL_PARENT_SNAPSHOT_INDEX]
        ):
            replace.append((work, each))
        elif settings.differ_from(work):
            adjust.append((work, settings))
    obsolete = [work for work in existing if work.name not in wanted and not work.deleting]
    return WorksPlan(tuple(create), tuple(replace), tuple(adjust), tuple(obsolete), tuple(blocked))


def _is_of(work: CachedWork, binding: Key, settings: WorkSettings) -> bool:
    """Whether a Work belongs to a binding; also if it lacks only the label that names the binding,
    which another client may have removed.
    """
    if names.LABEL_PARENT_BINDING in work.labels:
        return binding_of_work(work) == binding
    parents = (names.LABEL_PARENT_PLACEMENT, names.LABEL_PARENT_NAMESPACE)
    return all(work.labels.get(name) == settings.labels.get(name) for name in parents)


def plan_kept_works(
    binding: Binding, works: Iterable[CachedWork], report_back: ReportBackStrategy
) -> WorksPlan:
    """Compare the strategies of Works whose resource snapshots were pruned with the binding's."""
    annotations, strategy = work_annotations(binding), binding.spec.apply_strategy
    wanted = (
        (work, WorkSettings(dict(work.labels), annotations, strategy, report_back))
        for work in works
        if not work.deleting
    )
    return WorksPlan(
        adjust=tuple((work, settings) for work, settings in wanted if settings.differ_from(work))
    )


def _has_other(present: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return any(present.get(name) != value for name, value in wanted.items())


def belong_to_release(works: Iterable[CachedWork], binding: Binding) -> bool:
    """Whether `works` is not empty, and all of them have the release of the binding."""
    works = list(works)
    annotations = work_annotations(binding)
    return bool(works) and not any(_has_other(work.annotations, annotations) for work in works)
