"""Originals: what a virtual object bears while it is copied into a worker.

A label of the worker's own says so, by which alone we watch it. The label that says who manages it,
and the annotations that name the copy, are shared by all workers: the first one writes them, the
last one takes them off, and nothing depends on them. A finalizer is never put there; one of the
earlier implementation is proof that it made a copy, and is taken off when that copy is ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.forge.copies import Original

__all__ = ["is_marked", "is_pointed", "mark", "settle", "unmark"]


def is_marked(original: Original, *, cluster_id: str, domain: Domain) -> bool:
    """Whether it is known to be copied into that cluster."""
    return original.labels.get(domain.synced_by(cluster_id)) == group.TRUE


def is_pointed(original: Original, *, cluster_id: str, domain: Domain) -> bool:
    """Whether the earlier implementation made a copy of it in that cluster."""
    return domain.finalizer_for(cluster_id) in (original.metadata.finalizers or ())


def mark(
    original: Original, copy: Key, *, cluster_id: str, domain: Domain, used_by_pv: bool = False
) -> Json:
    """The merge patch that says where it is copied to; empty if it says so."""
    labels = {domain.synced_by(cluster_id): group.TRUE, domain.managed_by: domain.product}
    if used_by_pv:
        labels[domain.used_by_pv] = group.TRUE
    labels = {key: value for key, value in labels.items() if original.labels.get(key) != value}
    if not labels:
        return {}
    said = original.annotations
    names = {domain.physical_name: copy.name, domain.physical_namespace: copy.namespace}
    annotations = {key: value for key, value in names.items() if value and key not in said}
    return {"labels": labels} | ({"annotations": annotations} if annotations else {})


def settle(original: Original, *, cluster_id: str, domain: Domain) -> Json:
    """The merge patch that takes off what the earlier implementation needed; mostly empty."""
    change: Json = {}
    if domain.deleting(cluster_id) in original.annotations:
        change["annotations"] = {domain.deleting(cluster_id): None}
    return change | _without_finalizer(original, cluster_id, domain)


def unmark(original: Original, *, cluster_id: str, domain: Domain) -> Json:
    """The merge patch that takes off all that is ours; empty if nothing is."""
    change = settle(original, cluster_id=cluster_id, domain=domain)
    mine = domain.synced_by(cluster_id)
    labels = {mine} & original.labels.keys()
    annotations = set(change.get("annotations", ()))
    if not _others(original, mine, domain.finalizer_for(cluster_id), domain):
        labels |= {domain.managed_by, domain.used_by_pv} & original.labels.keys()
        names = {domain.physical_name, domain.physical_namespace}
        annotations |= names & original.annotations.keys()
    if labels:
        change["labels"] = _nothing(labels)
    if annotations:
        change["annotations"] = _nothing(annotations)
    return change


def _nothing(keys: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(sorted(keys))


def _others(original: Original, label: str, finalizer: str, domain: Domain) -> bool:
    """Whether it is copied into other clusters, too."""
    labels = any(k.startswith(domain.synced_by("")) and k != label for k in original.labels)
    held = original.metadata.finalizers or ()
    return labels or any(f.startswith(domain.finalizer_for("")) and f != finalizer for f in held)


def _without_finalizer(original: Original, cluster_id: str, domain: Domain) -> Json:
    ours = {domain.finalizer_for(cluster_id), domain.finalizer_synced_resource}
    held = original.metadata.finalizers or ()
    kept = [each for each in held if each not in ours]
    return {"finalizers": kept} if len(kept) < len(held) else {}
