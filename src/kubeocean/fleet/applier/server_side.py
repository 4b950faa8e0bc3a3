"""Server-side apply: fields that the applier manages, and whether an apply would change anything.

An apply changes nothing if the object has all values of the manifest, and its `managedFields` name
no field of the applier that the manifest does not have any more. An object that the applier has
created and never applied since is recognized by its values, which include the hash of the manifest:
no apply would remove anything from it. In doubt, one apply request is sent: lists that other
writers have extended, and values that the server has rewritten (a quantity of 1000m as 1), count
as changes.

An apply removes fields that the manifest no longer has, but only those that an earlier apply set.
Fields that the applier set otherwise, by creating the object or by a client-side patch, are listed
in entries of `managedFields` with the operation Update. `fields_as_applied` turns these entries
into one of an apply, as `kubectl apply --server-side` does.
"""

from __future__ import annotations

from typing import Any, Final

from kubeocean.api.fleet.names import FIELD_MANAGER
from kubeocean.fleet.applier.three_way import equal
from kubeocean.runtime.objects import Json

__all__ = ["fields_as_applied", "is_in_effect", "is_written_by_applier"]

_FIELD: Final = "f:"  # other keys of fieldsV1 stand for items of lists
_APPLY: Final = "Apply"


def is_in_effect(desired: Json, live: Json) -> bool:
    """Whether `live` has all values of `desired`, and the applier manages no further fields."""
    ours = [entry for entry in _managed_fields(live) if _is_ours(entry)]
    if not ours or not _covers(live, desired):
        return False
    return all(
        _names_only(entry.get("fieldsV1") or {}, desired)
        for entry in ours
        if entry.get("operation") == _APPLY
    )


def is_written_by_applier(live: Json) -> bool:
    """Whether the applier manages a field of the object."""
    return any(map(_is_ours, _managed_fields(live)))


def fields_as_applied(live: Json) -> list[Json] | None:
    """Return the `managedFields` of an object with all fields of the applier in one applied entry.

    None if the applier has applied all its fields. Fields that the applier wrote in another version
    of the API than the latest get no manager: their names may differ between versions.
    """
    entries = _managed_fields(live)
    ours = [entry for entry in entries if _is_ours(entry)]
    if all(entry.get("operation") == _APPLY for entry in ours):
        return None
    applied = [entry for entry in ours if entry.get("operation") == _APPLY]
    latest = (applied or sorted(ours, key=lambda entry: str(entry.get("time"))))[-1]
    fields: Json = {}
    for entry in ours:
        if entry.get("apiVersion") == latest.get("apiVersion"):
            fields = _union(fields, entry.get("fieldsV1") or {})
    others = [entry for entry in entries if not _is_ours(entry)]
    return [*others, {**latest, "operation": _APPLY, "fieldsV1": fields}]


def _managed_fields(live: Json) -> list[Json]:
    return list((live.get("metadata") or {}).get("managedFields") or ())


def _is_ours(entry: Json) -> bool:
    return bool(entry.get("manager") == FIELD_MANAGER and not entry.get("subresource"))


def _union(fields: Json, more: Json) -> Json:
    """Return the union of two sets of fields in the form of `fieldsV1`."""
    merged = dict(fields)
    for name, nested in more.items():
        merged[name] = _union(merged.get(name) or {}, nested or {})
    return merged


def _names_only(fields: Json, desired: Any) -> bool:
    """Whether `desired` has all managed fields in `fields`; list items are compared by value."""
    if not isinstance(desired, dict):
        return True
    return all(
        name.removeprefix(_FIELD) in desired
        and _names_only(nested, desired[name.removeprefix(_FIELD)])
        for name, nested in fields.items()
        if name.startswith(_FIELD)
    )


def _covers(live: Any, desired: Any) -> bool:
    """Whether an object has all desired values; lists must have no further items."""
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            name in live and _covers(live[name], value) for name, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(live, list)
            and len(live) == len(desired)
            and all(map(_covers, live, desired))
        )
    return equal(live, desired)
