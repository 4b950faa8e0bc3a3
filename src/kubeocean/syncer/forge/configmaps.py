"""ConfigMaps: copied word for word, `immutable` and all."""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.forge.copies import Copy, Original, Recipe

__all__ = ["CONFIG_MAPS", "translate"]


def translate(content: Json) -> Json:
    """What the copy of a ConfigMap holds."""
    return {key: content[key] for key in ("data", "binaryData", "immutable") if content.get(key)}


def _held(content: Json) -> Json:
    return {
        "/data": content.get("data") or {},
        "/binaryData": content.get("binaryData") or {},
        "/immutable": bool(content.get("immutable")),
    }


def _fixed(content: Json) -> Json:
    return {}


CONFIG_MAPS: Final = Recipe(
    originals=Resource("", "v1", "configmaps", "ConfigMap", True, Original),
    copies=Resource("", "v1", "configmaps", "ConfigMap", True, Copy),
    held=_held,
    fixed=_fixed,
)
