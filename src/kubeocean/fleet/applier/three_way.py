"""Three-way merge: the patch by which `kubectl apply` and KubeFleet change an object.

The patch is computed from three documents: the manifest that was applied last, the manifest that is
desired now, and the live object. It sets the fields that the desired manifest names, removes those
that only the last manifest named, and leaves alone those that other writers added. An empty patch
means that no request is sent.

Kubernetes' own kinds are patched with a strategic merge patch, as kubectl and KubeFleet do: a
sidecar that a webhook injected into the list of containers stays. The server merges; the patch
names list items by their merge keys, and contains directives for changes that a merge cannot
express:

    $patch: delete                   removes the item with this merge key
    $patch: replace                  replaces the whole list
    $deleteFromPrimitiveList/NAME    removes these values from the list NAME
    $setElementOrder/NAME            puts the items of the list NAME in this order
    $retainKeys                      removes all other keys of the object

All other kinds get a JSON merge patch, in which a list is replaced whole.

Two differences to kubectl: nulls and order directives that change nothing are left out, so that
equal objects give an empty patch; the resulting object is the same. And if two items of a list have
the same merge key (a Service with port 53 for TCP and for UDP), where kubectl's merge by key loses
or mixes items, the whole list is replaced by the merged one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubeocean.fleet.applier.merge_keys import Field, TypeShape
from kubeocean.runtime.objects import Json

__all__ = ["equal", "json_merge", "strategic", "without_nulls"]

_NO_SHAPE: Final = TypeShape({}, {})


def strategic(last: Json, desired: Json, live: Json, shape: TypeShape) -> Json:
    """Return the strategic merge patch for an object of a built-in kind."""
    return _object_patch(last, desired, live, shape)


def json_merge(last: Json, desired: Json, live: Json) -> Json:
    """Return the JSON merge patch for an object of any kind.

    Unlike with `runtime.objects.merge_patch`, fields that other writers added to the live object
    stay: only those that the last manifest named are removed.
    """
    return _object_patch(last, without_nulls(desired), live, _NO_SHAPE)


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; unlike in Python, true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def without_nulls(value: Any) -> Any:
    """Return a JSON value without the keys of objects that are null, as a server stores it."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value


def _object_patch(last: Json, desired: Json, live: Json, shape: TypeShape) -> Json:
    patch: Json = {}
    for name, value in desired.items():
        current = live.get(name)
        if value is None:
            if current is not None:
                patch[name] = None
            continue
        field = shape.field(name)
        if isinstance(value, dict) and isinstance(current, dict) and not field.replaces:
            change = _object_patch(_object(last.get(name)), value, current, field.shape)
            if field.retains_keys:
                _retain_keys(change, value, current)
            if change:
                patch[name] = change
        elif isinstance(value, list) and isinstance(current, list) and field.merges:
            patch |= _list_patch(name, _list(last.get(name)), value, current, field)
        elif current is None or not equal(value, current):
            patch[name] = without_nulls(value)
    patch |= {name: None for name in last if name not in desired and live.get(name) is not None}
    return patch


def _retain_keys(change: Json, desired: Json, live: Json) -> None:
    """Add `$retainKeys` to `change` if the object has other keys, or is patched anyway."""
    kept = sorted(name for name, value in desired.items() if value is not None)
    if kept and (change or live.keys() - desired.keys()):
        change["$retainKeys"] = kept


def _list_patch(
    name: str, last: list[Any], desired: list[Any], live: list[Any], field: Field
) -> Json:
    """Return the entries of the patch for a list that is merged."""
    if not field.merge_key:
        return _values_patch(name, last, desired, live)
    key = field.merge_key
    if not live:
        return {name: without_nulls(desired)} if desired else {}
    if not (_identifies(key, desired) and _identifies(key, live)):
        return _replacement(name, last, desired, live, key)
    before, now = _by_key(last, key), _by_key(live, key)
    wanted = _by_key(desired, key)
    items: list[Json] = []
    for identity, item in wanted.items():
        if identity not in now:
            items.append(without_nulls(item))
            continue
        change = _object_patch(before.get(identity, {}), item, now[identity], field.shape)
        if field.retains_keys:
            _retain_keys(change, item, now[identity])
        if change:
            items.append({key: item[key], **change})
    removed = [identity for identity in before if identity not in wanted and identity in now]
    items += [{"$patch": "delete", key: now[identity][key]} for identity in removed]
    patch: Json = {name: items} if items else {}
    if wanted and (items or _is_reordered(wanted, now)):
        patch[f"$setElementOrder/{name}"] = [{key: item[key]} for item in desired]
    return patch


def _values_patch(name: str, last: list[Any], desired: list[Any], live: list[Any]) -> Json:
    """Return the entries of the patch for a list of strings or numbers that is merged as a set."""
    wanted, now, before = _values(desired), _values(live), _values(last)
    patch: Json = {}
    if missing := [value for value in wanted if value not in now]:
        patch[name] = missing
    if removed := [value for value in before if value not in wanted and value in now]:
        patch[f"$deleteFromPrimitiveList/{name}"] = removed
    if wanted and now and (patch or _is_reordered(wanted, now)):
        patch[f"$setElementOrder/{name}"] = wanted
    return patch


def _values(items: Iterable[Any]) -> list[Any]:
    """Return the strings and numbers of a list, each once; skip other items.

    The annotation with the last manifest may hold anything.
    """
    return list(dict.fromkeys(item for item in items if isinstance(item, str | int | float)))


def _is_reordered(wanted: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether the items of `wanted` that are also in `now` have another order there."""
    shared = set(wanted) & set(now)
    return [each for each in wanted if each in shared] != [each for each in now if each in shared]


def _identifies(key: str, items: Iterable[Any]) -> bool:
    """Whether every item has a merge key that no other item has."""
    items = list(items)
    return len(_by_key(items, key)) == len(items)


def _by_key(items: Iterable[Any], key: str) -> dict[str, Json]:
    """Return the items by the text of their merge key; of several with one key, the first."""
    by_key: dict[str, Json] = {}
    for item in items:
        if isinstance(item, dict) and item.get(key) is not None:
            by_key.setdefault(str(item[key]), item)
    return by_key


# --- lists whose items the merge key does not identify


def _replacement(name: str, last: list[Any], desired: list[Any], live: list[Any], key: str) -> Json:
    """Return the entry of the patch that replaces a list by the merged one.

    Items are paired by their merge key and then by the number of fields in which they agree. Live
    items that are paired with nothing desired are kept, unless the last manifest had them.
    """
    before, unpaired = list(last), list(live)
    merged: list[Any] = []
    for item in desired:
        remembered = _take_partner(item, before, key)
        current = _take_partner(item, unpaired, key)
        if current is None:
            merged.append(without_nulls(item))
        else:
            merged.append(_overlaid(remembered or {}, item, current))
    for item in before:
        _take_partner(item, unpaired, key)
    merged += unpaired
    return {} if equal(merged, live) else {name: [{"$patch": "replace"}, *merged]}


def _take_partner(item: Any, candidates: list[Any], key: str) -> Json | None:
    """Remove and return the candidate most similar to `item`; None without one of its merge key."""
    if not isinstance(item, dict) or item.get(key) is None:
        return None
    same = [each for each in candidates if isinstance(each, dict) and each.get(key) == item[key]]
    partner = max(same, key=lambda each: _agreement(item, each), default=None)
    if partner is not None:
        candidates.remove(partner)
    return partner


def _agreement(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    return sum(name in right and equal(value, right[name]) for name, value in left.items())


def _overlaid(last: Json, desired: Json, live: Json) -> Json:
    """Return the live item with the desired fields, less those that only the last manifest had."""
    merged = {name: live[name] for name in live if name in desired or name not in last}
    for name, value in desired.items():
        current = live.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(current, dict):
            merged[name] = _overlaid(_object(last.get(name)), value, current)
        else:
            merged[name] = without_nulls(value)
    return merged


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
