"""Claims: a claim that is bound above, bound to the copy of its volume below.

The volume names the claim before the claim is there, so that the worker binds these two to each
other, whatever their classes and sizes, and nobody else's claim can come first. The claim therefore
begins unbound: what the computing cluster noted of its own binding is not copied (a claim that says
it is bound, to a volume that does not know its UID, counts as lost for good). It keeps the name of
its class, which decides below whether it may grow; where it has none it says so, or the worker
would put its default class there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.forge.copies import Copy, Original, Recipe

__all__ = ["CLAIMS", "DROPPED", "Unbound", "translate", "volume_of"]

# What the computing cluster's binder wrote; `selected-node` names a virtual node, besides.
DROPPED: Final = frozenset(
    {
        "pv.kubernetes.io/bind-completed",
        "pv.kubernetes.io/bound-by-controller",
        "volume.kubernetes.io/selected-node",
    }
)
_COPIED: Final = ("accessModes", "resources", "volumeMode")


@dataclass(frozen=True, slots=True)
class Unbound:
    """A claim that has no volume yet, or has lost it; its phase."""

    phase: str


def volume_of(content: Json) -> str | Unbound:
    """The name of the volume that a claim is bound to."""
    phase = (content.get("status") or {}).get("phase") or "Pending"
    volume: str = (content.get("spec") or {}).get("volumeName") or ""
    return volume if volume and phase == "Bound" else Unbound(phase)


def translate(content: Json, *, volume: str) -> Json:
    """What the copy of a claim holds; `volume` is the copy of its volume."""
    spec: Json = content.get("spec") or {}
    kept = {key: spec[key] for key in _COPIED if spec.get(key)}
    class_name = spec.get("storageClassName") or ""
    return {"spec": kept | {"volumeName": volume, "storageClassName": class_name}}


def _held(content: Json) -> Json:
    resources: Json = (content.get("spec") or {}).get("resources") or {}
    return {"/spec/resources/requests": resources.get("requests") or {}}


def _fixed(content: Json) -> Json:
    return {"volumeName": (content.get("spec") or {}).get("volumeName")}


def _refers(content: Json) -> tuple[str, ...]:
    volume = volume_of(content)
    return (volume,) if isinstance(volume, str) else ()


CLAIMS: Final = Recipe(
    originals=Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Original),
    copies=Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Copy),
    held=_held,
    fixed=_fixed,
    refers=_refers,
)
