"""Server-side apply: whether an object shows that applying a manifest once more changes nothing.

An apply changes nothing if the object has all values of the manifest, and its `managedFields` name
no field of the applier that the manifest does not have any more. An object that the applier has
created and never applied since is recognized by its values, which include the hash of the manifest:
no apply would remove anything from it. In doubt, one apply request is sent: lists that other
writers have extended, and values that the server has rewritten (a quantity of 1000m as 1), count
as changes.
"""

from __future__ import annotations

from typing import Any, Final

from kubeocean.api.fleet.names import FIELD_MANAGER
from kubeocean.fleet.applier.three_way import equal
from kubeocean.runtime.objects import Json

__all__ = ["is_in_effect"]

_FIELD: Final = "f:"  # other keys of fieldsV1 stand for items of lists


def is_in_effect(desired: Json, live: Json) -> bool:
    """Whether `live` has all values of `desired`, and the applier manages no further fields."""
    entries = (live.get("metadata") or {}).get("managedFields") or ()
    ours = [
        entry
        for entry in entries
        if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
    ]
    if not ours or not _covers(live, desired):
        return False
    return all(
        _names_only(entry.get("fieldsV1") or {}, desired)
        for entry in ours
        if entry.get("operation") == "Apply"
    )


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
