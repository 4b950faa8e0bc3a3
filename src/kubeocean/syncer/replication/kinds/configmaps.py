"""ConfigMaps: a copy has the data of its source, and is immutable if the source is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.pods import referenced_objects
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.copy_forge import Copy, PodReference, ReplicatedKind, Source

__all__ = ["CONFIG_MAPS", "translate"]


def translate(content: Json) -> Json:
    """Return the content of the copy of a ConfigMap."""
    return {key: content[key] for key in ("data", "binaryData", "immutable") if content.get(key)}


def _synced_fields(content: Json) -> Json:
    return {
        "/data": content.get("data") or {},
        "/binaryData": content.get("binaryData") or {},
        "/immutable": bool(content.get("immutable")),
    }


def _pod_references(refs: References) -> Iterator[PodReference]:
    for name, optional in refs.config_maps.items():
        yield PodReference(name, optional)


CONFIG_MAPS: Final = ReplicatedKind(
    sources=Resource("", "v1", "configmaps", "ConfigMap", True, Source),
    copies=Resource("", "v1", "configmaps", "ConfigMap", True, Copy),
    synced_fields=_synced_fields,
    pod_references=_pod_references,
    translate=translate,
    env_source=referenced_objects.CONFIG_MAP,
)
