"""Drift: what of an object is not as we want it.

Only what we say counts. Servers add defaults, controllers add annotations and people add what we
do not speak of: a sidecar, a `kubectl rollout restart`. Lists that Kubernetes merges by a key are
compared by that key and may hold more; all others are whole.

An object of the earlier implementation was written by a manager of another name. `handed_over`
makes what that one wrote ours, so that the next apply takes away what our template does not have.
A Deployment's selector cannot change: `fitted` keeps the one that is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.runtime.objects import Json, prune_json
from kubeocean.runtime.quantity import Quantity

__all__ = ["drift", "fingerprint", "fitted", "handed_over"]

# Lists that are merged by key, by the name of their field: see the API's list types.
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
_NOT_OURS: Final = frozenset(("kube-controller-manager",))  # it goes on writing what it wrote

_sorted = msgspec.json.Encoder(order="sorted").encode


def drift(wanted: Json, there: Json) -> tuple[str, ...]:
    """The fields of `wanted` that are not so; empty means that there is nothing to write."""
    # Lists leave the kind of their items out.
    said = {name: value for name, value in wanted.items() if name not in ("apiVersion", "kind")}
    return tuple(_differences(said, there, "", ""))


def fingerprint(there: Json) -> str:
    """Changes whenever somebody changes the object, and not when its status is told."""
    return hashlib.sha256(_sorted(prune_json(there))).hexdigest()


def fitted(wanted: Json, there: Json) -> Json:
    """What is wanted, with the selector that is there and cannot change.

    :raises ConfigError: our pods would not match it.
    """
    if wanted["kind"] != DEPLOYMENTS.kind:
        return wanted
    selector = there["spec"]["selector"]
    spec = wanted["spec"]
    if spec.get("selector") == selector:
        return wanted
    template = spec["template"]
    labels = template["metadata"]["labels"]
    kept = selector.get("matchLabels") or {}
    against = [key for key, value in kept.items() if labels.get(key, value) != value]
    if against or selector.get("matchExpressions"):
        name = there["metadata"]["name"]
        said = f"the selector of Deployment {name} cannot change, and pods would not match it"
        raise ConfigError(f"{said}; deleting the Deployment lets it be made anew")
    metadata = template["metadata"] | {"labels": labels | kept}
    return wanted | {
        "spec": spec | {"selector": selector, "template": template | {"metadata": metadata}}
    }


def handed_over(there: Json, manager: str) -> list[Json] | None:
    """`managedFields` in which what others wrote is what `manager` applied; None: as it is."""
    entries: list[Json] = there["metadata"].get("managedFields") or []
    taken = [entry for entry in entries if _is_taken(entry)]
    if not taken:
        return None
    applied = [entry for entry in entries if _is_applied(entry, manager)]
    kept = [entry for entry in entries if not _is_taken(entry) and entry not in applied]
    fields: Json = {}
    for entry in (*applied, *taken):
        fields = _merged(fields, entry.get("fieldsV1") or {})
    ours = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": taken[-1]["apiVersion"],
        "time": taken[-1].get("time"),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return [*kept, ours]


def _is_taken(entry: Json) -> bool:
    others = entry.get("manager") not in _NOT_OURS and not entry.get("subresource")
    return others and entry.get("operation") == "Update"


def _is_applied(entry: Json, manager: str) -> bool:
    own = (entry.get("manager"), entry.get("operation")) == (manager, "Apply")
    return own and not entry.get("subresource")


def _merged(left: Json, right: Json) -> Json:
    found = dict(left)
    for key, value in right.items():
        found[key] = _merged(found.get(key) or {}, value or {})
    return found


# Comparing


def _differences(wanted: Any, there: Any, name: str, path: str) -> Iterator[str]:
    """`name` is the field that this is the value of, or an entry of."""
    if isinstance(wanted, Mapping):
        if not isinstance(there, Mapping):
            if wanted or there is not None:  # the server drops what is empty
                yield path
            return
        for key, value in wanted.items():
            below = key if name not in _QUANTITIES else name
            yield from _differences(value, there.get(key), below, f"{path}.{key}")
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        yield from _in_list(wanted, there or (), name, path)
    elif not _same(wanted, there, name):
        yield path


def _in_list(wanted: Sequence[Any], there: Any, name: str, path: str) -> Iterator[str]:
    if not isinstance(there, Sequence) or isinstance(there, str):
        yield path
    elif (keyed := _by_key(wanted, name, path)) is not None and (
        found := _by_key(there, name, path)
    ) is not None:
        for key, each in keyed.items():
            below = f"{path}[{','.join(key)}]"
            if key in found:
                yield from _differences(each, found[key], "", below)
            else:
                yield below
    elif len(wanted) != len(there):
        yield path
    else:
        for at, (one, other) in enumerate(zip(wanted, there, strict=True)):
            yield from _differences(one, other, "", f"{path}[{at}]")


def _by_key(entries: Sequence[Any], name: str, path: str) -> dict[tuple[str, ...], Any] | None:
    """The entries by their keys; None if it is no such list."""
    if not all(isinstance(each, Mapping) for each in entries):
        return None
    ports = name == _PORTS and (
        path == _SERVICE_PORTS or all(_CONTAINER_PORT in each for each in entries)
    )
    if not ports and name not in _KEYED:
        return None
    found = {_key_of(each, name): each for each in entries}
    return found if len(found) == len(entries) else None


def _key_of(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if name == _PORTS:
        number = entry.get(_CONTAINER_PORT, entry.get("port"))
        return str(number), str(entry.get("protocol") or "TCP")
    return tuple(str(entry.get(part)) for part in _KEYED[name])


def _same(wanted: Any, there: Any, name: str) -> bool:
    if there is None:
        return wanted in ("", False) or (wanted == 0 and not isinstance(wanted, str))
    if name in _QUANTITIES:
        return _amount(wanted) == _amount(there)
    return bool(wanted == there) and isinstance(wanted, bool) is isinstance(there, bool)


def _amount(value: Any) -> object:
    try:
        return Quantity.parse(str(value))
    except ConfigError:
        return value
