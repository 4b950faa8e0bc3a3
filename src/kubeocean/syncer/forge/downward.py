"""Downward API: what a container asks about its pod is answered as if it ran above.

The worker knows the physical pod by another name, UID, node and account. What the virtual ones are
is written in annotations of the physical pod, and questions about them are turned there. Labels,
annotations and addresses are asked of the physical pod itself.
"""

from __future__ import annotations

from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json

__all__ = ["answers", "translate_field", "translate_items"]


def answers(domain: Domain) -> dict[str, str]:
    """The field of a pod → the annotation of the physical pod that has the answer."""
    return {
        "metadata.name": domain.virtual_pod_name,
        "metadata.namespace": domain.virtual_pod_namespace,
        "metadata.uid": domain.virtual_pod_uid,
        "spec.nodeName": domain.virtual_node_name,
        "spec.serviceAccountName": domain.service_account,
    }


def translate_field(ref: Json, domain: Domain) -> Json:
    """A fieldRef, asked below."""
    annotation = answers(domain).get(ref["fieldPath"])
    return (
        ref if annotation is None else ref | {"fieldPath": f"metadata.annotations['{annotation}']"}
    )


def translate_items(source: Json, domain: Domain) -> Json:
    """A downwardAPI volume, or such a source of a projected one."""
    items: list[Json] = [
        item | {"fieldRef": translate_field(item["fieldRef"], domain)}
        if "fieldRef" in item
        else item
        for item in source.get("items") or ()
    ]
    return source | {"items": items} if items else source
