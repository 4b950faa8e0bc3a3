"""Labels and annotations of a virtual pod: those of its user, and what is shown from below.

Whatever the worker's programs put on a physical pod is shown on the virtual one, unless its user
has something else there. What was shown is written down beside it, in the same annotation that the
physical pod has, so that it follows what happens below and is not taken for the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.metadata import Expected, merge_patch

__all__ = ["is_copied", "metadata", "users_own"]

_Texts: TypeAlias = Mapping[str, str]


def metadata(vpod: Json, ppod: Json, domain: Domain) -> Json:
    """What to change in the metadata of a virtual pod: where it runs, and what is shown."""
    above, below = vpod["metadata"], ppod["metadata"]
    shown, came_from_above = _shown(above, domain), _shown(below, domain)
    labels = _foreign(_texts(below, "labels"), came_from_above.labels, domain)
    annotations = _foreign(_texts(below, "annotations"), came_from_above.annotations, domain)
    visible = Expected(
        labels=_unless_users(labels, shown.labels, _texts(above, "labels")),
        annotations=_unless_users(annotations, shown.annotations, _texts(above, "annotations")),
    )
    ours = {
        domain.physical_pod_namespace: below["namespace"],
        domain.physical_pod_name: below["name"],
        domain.physical_pod_uid: below["uid"],
    }
    if visible.labels or visible.annotations:
        ours[domain.expected_metadata] = visible.encode()
    own = users_own(vpod, domain)["metadata"]
    marked = {domain.managed_by: domain.product}
    wanted: dict[str, dict[str, str]] = {
        "labels": _texts(own, "labels") | dict(visible.labels) | marked,
        "annotations": _texts(own, "annotations") | dict(visible.annotations) | ours,
    }
    patches = {name: merge_patch(_texts(above, name), texts) for name, texts in wanted.items()}
    return {name: patch for name, patch in patches.items() if patch}


def users_own(vpod: Json, domain: Domain) -> Json:
    """The pod without what was shown from below, as its user would know it."""
    meta: Json = vpod["metadata"]
    shown = _shown(meta, domain)
    labels = dict(shown.labels) | {domain.managed_by: domain.product}
    own = {
        "labels": _without(_texts(meta, "labels"), labels),
        "annotations": _without(_texts(meta, "annotations"), shown.annotations),
    }
    own["annotations"].pop(domain.expected_metadata, None)
    return vpod | {"metadata": meta | own}


def is_copied(vpod: Json, domain: Domain) -> bool:
    """Whether the user wrote where a pod runs, with the rest of a manifest that was taken from one.

    We write it through the status, as no user does, and the server remembers who wrote what.
    """
    managed: list[Json] = vpod["metadata"].get("managedFields") or []
    field = f"f:{domain.physical_pod_uid}"
    wrote = (
        ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
        for entry in managed
        if entry.get("subresource") == "status"
    )
    return bool(managed) and not any(field in annotations for annotations in wrote)


def _shown(meta: Json, domain: Domain) -> Expected:
    return Expected.decode(_texts(meta, "annotations").get(domain.expected_metadata, ""))


def _foreign(below: _Texts, from_above: _Texts, domain: Domain) -> dict[str, str]:
    """What neither we nor the user put there."""
    return {k: v for k, v in below.items() if k not in from_above and not domain.owns(k)}


def _unless_users(below: _Texts, shown: _Texts, above: _Texts) -> dict[str, str]:
    return {k: v for k, v in below.items() if k not in above or shown.get(k) == above[k]}


def _without(texts: _Texts, shown: _Texts) -> dict[str, str]:
    return {k: v for k, v in texts.items() if shown.get(k) != v}


def _texts(meta: Json, name: str) -> dict[str, str]:
    texts: dict[str, Any] = meta.get(name) or {}
    return texts
