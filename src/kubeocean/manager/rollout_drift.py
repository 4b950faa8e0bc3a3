"""Compares an object with its template, and prepares objects of another field manager for apply.

Only fields of the template are compared: servers add defaults, controllers add annotations, and
users add sidecars or run `kubectl rollout restart`. Lists that Kubernetes merges by a key are
compared by that key and may have more entries; all other lists must be equal.

Objects of the earlier implementation were written by another field manager. `transfer_fields` makes
the fields of that manager ours, so that the next apply removes fields that the template does not
have. A Deployment's selector is immutable: `keep_selector` keeps the stored one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.kinds import DEPLOYMENTS
from kubeocean.runtime.objects import Json, prune_json
from kubeocean.runtime.quantity import Quantity

__all__ = ["drift", "fingerprint", "keep_replicas", "keep_selector", "transfer_fields"]

# Keys of lists that are merged by key, by field name: see the list types of the API.
_KEYED: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "resourceClaims": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
# Ports of containers and of Services are merged by number and protocol, which may be left out;
# those of network policies are not.
_PORTS: Final = "ports"
_SERVICE_PORTS: Final = ".spec.ports"
_CONTAINER_PORT: Final = "containerPort"
_QUANTITIES: Final = frozenset(("limits", "requests", "sizeLimit", "hard"))
# The field managers that still write their fields.
_KEPT_MANAGERS: Final = frozenset(("kube-controller-manager",))

_sorted = msgspec.json.Encoder(order="sorted").encode


def drift(desired: Json, stored: Json) -> tuple[str, ...]:
    """Return the paths of fields of `desired` that differ in `stored`."""
    # Items of a list response have no apiVersion and kind.
    fields = {name: value for name, value in desired.items() if name not in ("apiVersion", "kind")}
    return tuple(_differences(fields, stored, "", ""))


def fingerprint(stored: Json) -> str:
    """Return a hash of a stored object that does not depend on its status."""
    return hashlib.sha256(_sorted(prune_json(stored))).hexdigest()


def keep_selector(desired: Json, stored: Json) -> Json:
    """Return `desired` with the selector of the stored Deployment, which is immutable.

    :raises ConfigError: the desired pods would not match that selector.
    """
    if desired["kind"] != DEPLOYMENTS.kind:
        return desired
    selector = stored["spec"]["selector"]
    spec = desired["spec"]
    if spec.get("selector") == selector:
        return desired
    template = spec["template"]
    labels = template["metadata"]["labels"]
    kept = selector.get("matchLabels") or {}
    conflicting = [key for key, value in kept.items() if labels.get(key, value) != value]
    if conflicting or selector.get("matchExpressions"):
        name = stored["metadata"]["name"]
        message = f"the selector of Deployment {name} cannot change, and pods would not match it"
        raise ConfigError(f"{message}; delete the Deployment to have it created anew")
    metadata = template["metadata"] | {"labels": labels | kept}
    return desired | {
        "spec": spec | {"selector": selector, "template": template | {"metadata": metadata}}
    }


def keep_replicas(desired: Json, stored: Json, scale: tuple[int, int]) -> Json:
    """Return `desired` with the replicas that an autoscaler chose within its bounds.

    A number outside of the bounds is not an autoscaler's; 0 would even disable it.
    """
    least, most = scale
    replicas = stored["spec"].get("replicas", 1)
    if not least <= replicas <= most:
        return desired
    return desired | {"spec": desired["spec"] | {"replicas": replicas}}


def transfer_fields(stored: Json, manager: str) -> list[Json] | None:
    """Return the object's `managedFields` with the ownership of all fields that were set by Update
    transferred to `manager`, as fields that it applied.

    Fields of subresources and of kube-controller-manager are not transferred. None: there are no
    fields to transfer.
    """
    entries: list[Json] = stored["metadata"].get("managedFields") or []
    transferred = [entry for entry in entries if _is_transferred(entry)]
    if not transferred:
        return None
    applied = [entry for entry in entries if _is_applied(entry, manager)]
    kept = [entry for entry in entries if not _is_transferred(entry) and entry not in applied]
    fields: Json = {}
    for entry in (*applied, *transferred):
        fields = _merged(fields, entry.get("fieldsV1") or {})
    ours = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": transferred[-1]["apiVersion"],
        "time": transferred[-1].get("time"),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return [*kept, ours]


def _is_transferred(entry: Json) -> bool:
    candidate = entry.get("manager") not in _KEPT_MANAGERS and not entry.get("subresource")
    return candidate and entry.get("operation") == "Update"


def _is_applied(entry: Json, manager: str) -> bool:
    own = (entry.get("manager"), entry.get("operation")) == (manager, "Apply")
    return own and not entry.get("subresource")


def _merged(left: Json, right: Json) -> Json:
    merged = dict(left)
    for key, value in right.items():
        merged[key] = _merged(merged.get(key) or {}, value or {})
    return merged


def _differences(desired: Any, stored: Any, name: str, path: str) -> Iterator[str]:
    """Yield the paths of differing values; `name` is the field of the value or of its list."""
    if isinstance(desired, Mapping):
        if not isinstance(stored, Mapping):
            if desired or stored is not None:  # the server drops empty objects
                yield path
            return
        for key, value in desired.items():
            field = key if name not in _QUANTITIES else name
            yield from _differences(value, stored.get(key), field, f"{path}.{key}")
    elif isinstance(desired, Sequence) and not isinstance(desired, str):
        yield from _in_list(desired, stored or (), name, path)
    elif not _same(desired, stored, name):
        yield path


def _in_list(desired: Sequence[Any], stored: Any, name: str, path: str) -> Iterator[str]:
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        yield path
    elif (keyed := _by_key(desired, name, path)) is not None and (
        stored_by_key := _by_key(stored, name, path)
    ) is not None:
        for key, each in keyed.items():
            item = f"{path}[{','.join(key)}]"
            if key in stored_by_key:
                yield from _differences(each, stored_by_key[key], "", item)
            else:
                yield item
    elif len(desired) != len(stored):
        yield path
    else:
        for index, (one, other) in enumerate(zip(desired, stored, strict=True)):
            yield from _differences(one, other, "", f"{path}[{index}]")


def _by_key(entries: Sequence[Any], name: str, path: str) -> dict[tuple[str, ...], Any] | None:
    """Return the entries of a list by their keys; None if Kubernetes replaces the list as a whole.

    None also if two entries have the same key.
    """
    if not all(isinstance(each, Mapping) for each in entries):
        return None
    ports = name == _PORTS and (
        path == _SERVICE_PORTS or all(_CONTAINER_PORT in each for each in entries)
    )
    if not ports and name not in _KEYED:
        return None
    by_key = {_key_of(each, name): each for each in entries}
    return by_key if len(by_key) == len(entries) else None


def _key_of(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if name == _PORTS:
        number = entry.get(_CONTAINER_PORT, entry.get("port"))
        return str(number), str(entry.get("protocol") or "TCP")
    return tuple(str(entry.get(part)) for part in _KEYED[name])


def _same(desired: Any, stored: Any, name: str) -> bool:
    if stored is None:
        return desired in ("", False) or (desired == 0 and not isinstance(desired, str))
    if name in _QUANTITIES:
        return _amount(desired) == _amount(stored)
    return bool(desired == stored) and isinstance(desired, bool) is isinstance(stored, bool)


def _amount(value: Any) -> object:
    try:
        return Quantity.parse(str(value))
    except ConfigError:
        return value
