"""Secrets that PersistentVolumes name, and the fields of a volume that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from kubeocean.runtime.objects import Json, Key

__all__ = ["Rename", "claim_of", "copied_spec", "secrets_of", "with_secrets"]

# This kind of volume names its Secret in two fields instead of a reference.
_AZURE_FILE: Final = "azureFile"
_EXPAND: Final = "expand"
_CONTROLLERS: Final = frozenset({"controllerExpandSecretRef", "controllerPublishSecretRef"})

Rename: TypeAlias = Callable[[Key, str], Key]  # given a Secret and the field that names it


def claim_of(content: Json) -> Key:
    """Return the virtual claim that a virtual volume is bound to; empty names if none."""
    ref: Json = (content.get("spec") or {}).get("claimRef") or {}
    return Key(ref.get("namespace") or "", ref.get("name") or "")


def secrets_of(content: Json, *, controllers: bool) -> dict[Key, bool]:
    """Return every Secret that a volume names, and whether it is optional for mounting.

    The Secrets of calls to a CSI driver on a node count, and those of the in-tree kinds; a Secret
    without a namespace is in the namespace of the claim. Secrets for expansion are not needed to
    mount. Those of CSI controllers (`controllers`) administer the storage system, and Kubernetes
    shows them to no kubelet.
    """
    secrets: dict[Key, bool] = {}

    def add(key: Key, field: str) -> Key:
        secrets[key] = _EXPAND in field.lower() and secrets.get(key, True)
        return key

    spec = copied_spec(content, controllers=controllers)
    with_secrets(spec, claim_of(content).namespace, add)
    return secrets


def copied_spec(content: Json, *, controllers: bool) -> Json:
    """Return the spec of a volume, without the Secrets of CSI controllers unless `controllers`."""
    spec: Json = content.get("spec") or {}
    if controllers or not spec.get("csi"):
        return spec
    csi = {field: value for field, value in spec["csi"].items() if field not in _CONTROLLERS}
    return spec | {"csi": csi}


def with_secrets(spec: Json, namespace: str, rename: Rename) -> Json:
    """Return a volume's spec with `rename` applied to every Secret that it names."""
    return {
        kind: _source(kind, source, namespace, rename) if isinstance(source, dict) else source
        for kind, source in spec.items()
    }


def _source(kind: str, source: Json, namespace: str, rename: Rename) -> Json:
    if kind == _AZURE_FILE and source.get("secretName"):
        secret = Key(source.get("secretNamespace") or namespace, source["secretName"])
        renamed = rename(secret, "secretName")
        return source | {"secretName": renamed.name, "secretNamespace": renamed.namespace}
    refs = {
        field: rename(Key(ref.get("namespace") or namespace, ref["name"]), field)._asdict()
        for field, ref in source.items()
        if field.lower().endswith("secretref") and ref and ref.get("name")
    }
    return source | refs
