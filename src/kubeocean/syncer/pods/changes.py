"""Changes of a running pod: the fields that users may change, applied to the physical pod.

These are labels and annotations, images, tolerations and a smaller activeDeadlineSeconds; ephemeral
containers and requests and limits of CPU and memory have subresources of their own. A part of the
spec is applied only if that part of the virtual pod changed since the last time: fields that the
worker's admission changed in a physical pod stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Json, encode
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.pods.env import inherited, translate_env
from kubeocean.syncer.pods.forge import IMAGES, RESOURCES, TOLERATIONS, image_of, spec_record
from kubeocean.syncer.pods.forge_context import Context, Refused
from kubeocean.syncer.pods.metadata import metadata_changes, recorded_spec, spec_annotation
from kubeocean.syncer.pods.pod_security import container_problems
from kubeocean.syncer.pods.views import FINISHED

__all__ = [
    "EPHEMERAL_CONTAINERS",
    "RESIZE",
    "Changes",
    "PodPatch",
    "changes",
    "digest_of",
    "is_whole_when_created",
]

EPHEMERAL_CONTAINERS: Final = "ephemeralcontainers"
RESIZE: Final = "resize"
_RESIZABLE: Final = ("cpu", "memory")
_EPHEMERAL: Final = "ephemeralContainers"
_DEADLINE: Final = "activeDeadlineSeconds"
_KINDS: Final = ("initContainers", "containers")
_PARTS: Final = {IMAGES, RESOURCES, TOLERATIONS}


@dataclass(frozen=True, slots=True)
class PodPatch:
    """A strategic merge patch of a physical pod or a subresource, with the UID as precondition."""

    body: Json
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Patches to write, in this order, and the changes that cannot be applied.

    Each patch may be repeated, and none depends on the success of a later one.
    """

    patches: tuple[PodPatch, ...] = ()
    refused: tuple[Refused, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patches)


def changes(pod: Json, ppod: Json, context: Context) -> Changes:
    """Return the patches that apply the changed fields of a virtual pod to its physical pod."""
    if ppod["metadata"].get("deletionTimestamp"):
        return Changes()
    before, record = recorded_spec(ppod, context.domain), spec_record(pod)
    if before is not None and before.items() <= record.items() and before.keys() >= _PARTS:
        record = before  # an earlier version recorded no single images; not worth a write
    if (ppod.get("status") or {}).get("phase") in FINISHED:
        unchanged = record if before is None else before
        metadata, refused = _metadata(pod, ppod, context, unchanged)
        return Changes(_patches(ppod, ("", {"metadata": metadata})), refused)

    changed = {part for part, now in record.items() if before is None or before.get(part) != now}
    spec = _spec(pod["spec"], ppod["spec"], changed)
    resize = _resize(pod["spec"], ppod["spec"]) if RESOURCES in changed else {}
    # A resize is recorded only after it was requested.
    first = record | {RESOURCES: (before or {}).get(RESOURCES, "")} if resize else record
    metadata, too_large = _metadata(pod, ppod, context, first)
    ephemeral, refused = _ephemeral_containers(pod, ppod, context)
    after = {"annotations": spec_annotation(record, context.domain)} if resize else {}
    patches = _patches(
        ppod,
        ("", {"metadata": metadata, "spec": spec}),
        (EPHEMERAL_CONTAINERS, {"spec": ephemeral}),
        (RESIZE, {"spec": resize}),
        ("", {"metadata": after}),
    )
    return Changes(patches, (*too_large, *refused))


def digest_of(pod: Json, ppod: Json) -> int:
    """Return a digest of everything that `changes` compares in both pods."""
    virtual, physical = pod["metadata"], ppod["metadata"]
    texts = [
        sorted((each.get(name) or {}).items())
        for each in (virtual, physical)
        for name in ("labels", "annotations")
    ]
    return zlib.crc32(encode([texts, pod["spec"], physical.get("deletionTimestamp")]))


def is_whole_when_created(pod: Json) -> bool:
    """Whether a physical pod has no change to apply if it has the metadata that was forged for it.

    Ephemeral containers are added later, and a deadline may be changed by the worker's admission.
    """
    return not pod["spec"].keys() & {_EPHEMERAL, _DEADLINE}


def _metadata(
    pod: Json, ppod: Json, context: Context, record: Mapping[str, str]
) -> tuple[Json, tuple[Refused, ...]]:
    try:
        return metadata_changes(pod, ppod, context, record), ()
    except Refused as refused:
        return {}, (refused,)


def _spec(spec: Json, current: Json, changed: set[str]) -> Json:
    """Return the patch of the fields that may change in a running pod without a subresource."""
    patch: Json = _images(spec, current, changed) if IMAGES in changed else {}
    if TOLERATIONS in changed and (tolerations := _tolerations(spec, current)):
        patch["tolerations"] = tolerations
    deadline: int | None = spec.get(_DEADLINE)
    present: int | None = current.get(_DEADLINE)
    if deadline is not None and (present is None or deadline < present):
        patch[_DEADLINE] = deadline
    return patch


def _images(spec: Json, current: Json, changed: set[str]) -> Json:
    patch: Json = {}
    for kind, virtual, present in _containers(spec, current):
        if image_of(virtual["name"]) in changed and virtual.get("image") != present.get("image"):
            patch.setdefault(kind, []).append({"name": virtual["name"], "image": virtual["image"]})
    return patch


def _tolerations(spec: Json, current: Json) -> list[Json]:
    """Return all tolerations for the physical pod, if one of the virtual pod is missing.

    No toleration may be removed from a running pod, only its time may change.
    """
    tolerations: list[Json] = spec.get("tolerations") or []
    present: list[Json] = current.get("tolerations") or []
    if all(each in present for each in tolerations):
        return []
    ours = [_without_time(each) for each in tolerations]
    return [*tolerations, *(each for each in present if _without_time(each) not in ours)]


def _without_time(toleration: Json) -> Json:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _resize(spec: Json, current: Json) -> Json:
    patch: Json = {}
    for kind, virtual, present in _containers(spec, current):
        amounts = {
            field: changed
            for field in ("requests", "limits")
            if (changed := _changed_amounts(virtual, present, field))
        }
        if amounts:
            patch.setdefault(kind, []).append({"name": virtual["name"], "resources": amounts})
    return patch


def _changed_amounts(wanted: Json, present: Json, field: str) -> dict[str, str]:
    want: dict[str, str] = (wanted.get("resources") or {}).get(field) or {}
    have: dict[str, str] = (present.get("resources") or {}).get(field) or {}
    return {
        name: want[name]
        for name in _RESIZABLE
        if name in want
        and (name not in have or Quantity.stored(want[name]) != Quantity.stored(have[name]))
    }


def _ephemeral_containers(
    pod: Json, ppod: Json, context: Context
) -> tuple[Json, tuple[Refused, ...]]:
    """Return the patch that adds missing ephemeral containers; none can be changed or removed."""
    present = {container["name"] for container in ppod["spec"].get(_EPHEMERAL) or ()}
    added: list[Json] = []
    refused: list[Refused] = []
    for i, container in enumerate(pod["spec"].get(_EPHEMERAL) or ()):
        if container["name"] not in present:
            field = f"spec.{_EPHEMERAL}[{i}]"
            problems = [*container_problems(container, field, pod["spec"], context.privileges)]
            refused += problems
            if not problems:
                added.append(container)
    if not added:
        return {}, tuple(refused)
    common = inherited(pod, context)
    translated = [translate_env(pod, container, context, common) for container in added]
    return {_EPHEMERAL: translated}, tuple(refused)


def _containers(spec: Json, current: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield kind, virtual and physical container of each container that both pods have."""
    for kind in _KINDS:
        present = {container["name"]: container for container in current.get(kind) or ()}
        for container in spec.get(kind) or ():
            if container["name"] in present:
                yield kind, container, present[container["name"]]


def _patches(ppod: Json, *bodies: tuple[str, Json]) -> tuple[PodPatch, ...]:
    """Return a patch for each body that is not empty, with the UID of `ppod` as precondition."""
    meta = ppod["metadata"]
    patches: list[PodPatch] = []
    for subresource, body in bodies:
        fields = {key: value for key, value in body.items() if value}
        if fields:
            precondition = {"uid": meta["uid"]}
            if "tolerations" in (fields.get("spec") or {}):  # the list is replaced, not merged
                precondition["resourceVersion"] = meta["resourceVersion"]
            metadata = (fields.get("metadata") or {}) | precondition
            patches.append(PodPatch(fields | {"metadata": metadata}, subresource))
    return tuple(patches)
