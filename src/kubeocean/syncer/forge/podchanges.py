"""Changes of a running pod: what may be changed above is changed below.

Labels and annotations, images, tolerations, a nearer deadline; containers to debug with, and other
amounts of CPU and memory, each through its own subresource. A part of the spec is carried down only
when it changed above since the last time: what the worker's admission makes of a pod is its own
affair, and is not fought over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.forge.podcontext import Context, Refused
from kubeocean.syncer.forge.podenv import inherited, translate_env
from kubeocean.syncer.forge.podmetadata import metadata_changes, recorded, remember
from kubeocean.syncer.forge.podprivileges import container_problems
from kubeocean.syncer.forge.pods import IMAGES, RESOURCES, TOLERATIONS, spec_record
from kubeocean.syncer.podviews import FINISHED

__all__ = ["EPHEMERAL_CONTAINERS", "RESIZE", "Changes", "PodPatch", "changes"]

EPHEMERAL_CONTAINERS: Final = "ephemeralcontainers"
RESIZE: Final = "resize"
_RESIZABLE: Final = ("cpu", "memory")
_EPHEMERAL: Final = "ephemeralContainers"
_KINDS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class PodPatch:
    """A strategic merge patch of a physical pod, or of a subresource; it names the pod's UID."""

    body: Json
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write, in this order, and what of the virtual pod cannot be carried down.

    Each patch may be repeated. One that fails spoils none before it.
    """

    patches: tuple[PodPatch, ...] = ()
    refused: tuple[Refused, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patches)


def changes(pod: Json, ppod: Json, context: Context) -> Changes:
    """The difference between a physical pod and what it should be."""
    if ppod["metadata"].get("deletionTimestamp"):
        return Changes()
    before, record = recorded(ppod, context.domain), spec_record(pod)
    if (ppod.get("status") or {}).get("phase") in FINISHED:
        kept = record if before is None else before
        metadata, refused = _metadata(pod, ppod, context, kept)
        return Changes(_patches(ppod, ("", {"metadata": metadata})), refused)

    new = {part for part, now in record.items() if before is None or before.get(part) != now}
    spec = _spec(pod["spec"], ppod["spec"], new)
    resize = _resize(pod["spec"], ppod["spec"]) if RESOURCES in new else {}
    # That a resize was asked for is remembered only after it was.
    first = record | {RESOURCES: (before or {}).get(RESOURCES, "")} if resize else record
    metadata, too_large = _metadata(pod, ppod, context, first)
    debuggers, refused = _debuggers(pod, ppod, context)
    after = {"annotations": remember(record, context.domain)} if resize else {}
    patches = _patches(
        ppod,
        ("", {"metadata": metadata, "spec": spec}),
        (EPHEMERAL_CONTAINERS, {"spec": debuggers}),
        (RESIZE, {"spec": resize}),
        ("", {"metadata": after}),
    )
    return Changes(patches, (*too_large, *refused))


def _metadata(
    pod: Json, ppod: Json, context: Context, record: Mapping[str, str]
) -> tuple[Json, tuple[Refused, ...]]:
    try:
        return metadata_changes(pod, ppod, context, record), ()
    except Refused as refused:
        return {}, (refused,)


def _spec(spec: Json, now: Json, new: set[str]) -> Json:
    """What may be written to a running pod itself."""
    then: Json = _images(spec, now) if IMAGES in new else {}
    if TOLERATIONS in new and (tolerations := _tolerations(spec, now)):
        then["tolerations"] = tolerations
    deadline: int | None = spec.get("activeDeadlineSeconds")
    present: int | None = now.get("activeDeadlineSeconds")
    if deadline is not None and (present is None or deadline < present):
        then["activeDeadlineSeconds"] = deadline
    return then


def _images(spec: Json, now: Json) -> Json:
    found: Json = {}
    for kind, wanted, present in _pairs(spec, now):
        if wanted.get("image") != present.get("image"):
            found.setdefault(kind, []).append({"name": wanted["name"], "image": wanted["image"]})
    return found


def _tolerations(spec: Json, now: Json) -> list[Json]:
    """All tolerations, if one is missing; none may be taken away, only their time may change."""
    wanted: list[Json] = spec.get("tolerations") or []
    present: list[Json] = now.get("tolerations") or []
    if all(each in present for each in wanted):
        return []
    ours = [_but_time(each) for each in wanted]
    return [*wanted, *(each for each in present if _but_time(each) not in ours)]


def _but_time(toleration: Json) -> Json:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _resize(spec: Json, now: Json) -> Json:
    found: Json = {}
    for kind, wanted, present in _pairs(spec, now):
        amounts = {
            side: other
            for side in ("requests", "limits")
            if (other := _other_amounts(wanted, present, side))
        }
        if amounts:
            found.setdefault(kind, []).append({"name": wanted["name"], "resources": amounts})
    return found


def _other_amounts(wanted: Json, present: Json, side: str) -> dict[str, str]:
    want: dict[str, str] = (wanted.get("resources") or {}).get(side) or {}
    have: dict[str, str] = (present.get("resources") or {}).get(side) or {}
    return {
        name: want[name]
        for name in _RESIZABLE
        if name in want
        and (name not in have or Quantity.parse(want[name]) != Quantity.parse(have[name]))
    }


def _debuggers(pod: Json, ppod: Json, context: Context) -> tuple[Json, tuple[Refused, ...]]:
    """Ephemeral containers that are not there yet; none can be changed or taken away."""
    there = {container["name"] for container in ppod["spec"].get(_EPHEMERAL) or ()}
    added: list[Json] = []
    refused: list[Refused] = []
    for i, container in enumerate(pod["spec"].get(_EPHEMERAL) or ()):
        if container["name"] not in there:
            found = [*container_problems(container, f"spec.{_EPHEMERAL}[{i}]", context.privileges)]
            refused += found
            if not found:
                added.append(container)
    if not added:
        return {}, tuple(refused)
    around = inherited(pod, context)
    then = [translate_env(pod, container, context, around) for container in added]
    return {_EPHEMERAL: then}, tuple(refused)


def _pairs(spec: Json, now: Json) -> Iterator[tuple[str, Json, Json]]:
    """Each container above, and the one of the same name below."""
    for kind in _KINDS:
        present = {container["name"]: container for container in now.get(kind) or ()}
        for container in spec.get(kind) or ():
            if container["name"] in present:
                yield kind, container, present[container["name"]]


def _patches(ppod: Json, *wanted: tuple[str, Json]) -> tuple[PodPatch, ...]:
    """Those that say something, each for this pod and no other of its name."""
    meta = ppod["metadata"]
    found: list[PodPatch] = []
    for subresource, body in wanted:
        said = {key: value for key, value in body.items() if value}
        if said:
            precondition = {"uid": meta["uid"]}
            if "tolerations" in (said.get("spec") or {}):  # the list is replaced, not merged
                precondition["resourceVersion"] = meta["resourceVersion"]
            metadata = (said.get("metadata") or {}) | precondition
            found.append(PodPatch(said | {"metadata": metadata}, subresource))
    return tuple(found)
