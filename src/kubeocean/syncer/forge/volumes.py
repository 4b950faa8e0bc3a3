"""Volumes: the same storage, as the worker's nodes mount it.

The copy belongs to the copy of its claim alone, and is never more than a reference: its reclaim
policy is Retain, so that the data stays whatever happens below. Secrets that it names are copies in
our own namespace of the worker, and are named so, with their namespace: we write nowhere else, and
whoever owns a namespace of that name in the worker is nobody of ours. Nodes that it can only be
reached from are the worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kubeocean.api import group
from kubeocean.runtime.objects import Json, Key, Resource
from kubeocean.syncer.forge.copies import ClaimRef, Copy, Original, Recipe

__all__ = ["DROPPED", "VOLUMES", "claim_of", "rebind", "secrets_of", "translate"]

DROPPED: Final = frozenset({"pv.kubernetes.io/bound-by-controller"})
_RETAIN: Final = "Retain"
_OWN: Final = ("claimRef", "persistentVolumeReclaimPolicy", "volumeAttributesClassName")
_MUTABLE: Final = ("accessModes", "capacity", "mountOptions", "nodeAffinity", "storageClassName")
# One kind of volume names its Secret in two fields instead of a reference.
_FILE: Final = "azureFile"
_EXPAND: Final = "expand"

_Rename: TypeAlias = Callable[[Key, str], Key]


def claim_of(content: Json) -> Key:
    """The virtual claim that a virtual volume is bound to; empty names if none."""
    ref: Json = (content.get("spec") or {}).get("claimRef") or {}
    return Key(ref.get("namespace") or "", ref.get("name") or "")


def secrets_of(content: Json) -> dict[Key, bool]:
    """Every Secret that a virtual volume names, and whether it can be mounted without.

    Those of all calls of a driver count, and the old kinds'; one without a namespace is in that of
    the claim. What serves to make a volume larger is not needed to mount it.
    """
    found: dict[Key, bool] = {}

    def note(key: Key, field: str) -> Key:
        found[key] = _EXPAND in field.lower() and found.get(key, True)
        return key

    _with_secrets(content.get("spec") or {}, claim_of(content).namespace, note)
    return found


def translate(
    content: Json,
    *,
    claim: Key,
    secrets: Mapping[Key, Key],
    host: Callable[[str], str | None],
) -> Json:
    """What the copy of a volume holds.

    `claim` is the copy of its claim, `host` the name that a virtual node's own node has as a host.
    """
    spec: Json = content.get("spec") or {}
    kept = {key: value for key, value in spec.items() if key not in _OWN}
    kept = _with_secrets(kept, claim_of(content).namespace, lambda key, _: secrets[key])
    if kept.get("nodeAffinity"):
        kept["nodeAffinity"] = _affinity(kept["nodeAffinity"], host)
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim._asdict()}
    return {"spec": kept | {"claimRef": ref, "persistentVolumeReclaimPolicy": _RETAIN}}


def rebind(copy: Copy, claim: Key, *, uid: str) -> Json:
    """What to set, by JSON pointer, for a volume to be the claim's; empty if it is.

    `uid` is that of the claim's copy as it is now, empty while there is none. A volume remembers
    the UID that it was bound to, and without help will not be bound again.
    """
    now = copy.spec.claim_ref or ClaimRef()
    if (now.namespace, now.name) == tuple(claim) and now.uid in ("", uid):
        return {}
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim._asdict()}
    return {"/spec/claimRef": ref}


def _with_secrets(spec: Json, namespace: str, to: _Rename) -> Json:
    """The spec with every mention of a Secret, and the field it is in, put through `to`."""
    return {
        kind: _source(kind, source, namespace, to) if isinstance(source, dict) else source
        for kind, source in spec.items()
    }


def _source(kind: str, source: Json, namespace: str, to: _Rename) -> Json:
    if kind == _FILE and source.get("secretName"):
        named = Key(source.get("secretNamespace") or namespace, source["secretName"])
        then = to(named, "secretName")
        return source | {"secretName": then.name, "secretNamespace": then.namespace}
    refs = {
        field: to(Key(ref.get("namespace") or namespace, ref["name"]), field)._asdict()
        for field, ref in source.items()
        if field.lower().endswith("secretref") and ref and ref.get("name")
    }
    return source | refs


def _affinity(affinity: Json, host: Callable[[str], str | None]) -> Json:
    """Where it names virtual nodes it names their own nodes then; what is shared stays."""
    required: Json = affinity.get("required") or {}
    terms = [
        term
        | {
            field: [_expression(each, host) for each in term[field]]
            for field in ("matchExpressions", "matchFields")
            if term.get(field)
        }
        for term in required.get("nodeSelectorTerms") or ()
    ]
    return affinity | {"required": required | {"nodeSelectorTerms": terms}}


def _expression(expression: Json, host: Callable[[str], str | None]) -> Json:
    if expression.get("key") not in (group.LABEL_HOSTNAME, "metadata.name"):
        return expression
    values = [host(value) or value for value in expression.get("values") or ()]
    return expression | {"values": values}


def _held(content: Json) -> Json:
    spec: Json = content.get("spec") or {}
    return {
        "/spec/capacity": spec.get("capacity") or {},
        "/spec/mountOptions": spec.get("mountOptions") or [],
        "/spec/persistentVolumeReclaimPolicy": spec.get("persistentVolumeReclaimPolicy"),
    }


def _fixed(content: Json) -> Json:
    spec: Json = content.get("spec") or {}
    ours = (*_OWN, *_MUTABLE, "volumeMode")
    return {key: value for key, value in spec.items() if key not in ours}


def _refers(content: Json) -> tuple[str, ...]:
    return tuple(map(str, secrets_of(content)))


VOLUMES: Final = Recipe(
    originals=Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Original),
    copies=Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Copy),
    held=_held,
    fixed=_fixed,
    refers=_refers,
)
