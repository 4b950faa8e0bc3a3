"""Server-side apply: whether an object shows that applying a manifest once more changes nothing.

A server answers an apply that changes nothing without a new version, but it is asked all the same.
The object tells beforehand: its `managedFields` name the fields that we applied last, and its
content has their values. A doubt costs one request: lists that others have extended, and values
that the server has rewritten (a quantity of 1000m as 1), count as changes.
"""

from __future__ import annotations

from typing import Any, Final

from kubeocean.api.fleet.names import FIELD_MANAGER
from kubeocean.fleet.applier.three_way import equal
from kubeocean.runtime.objects import Json

__all__ = ["is_in_effect"]

_FIELD: Final = "f:"  # other keys of fieldsV1 stand for items of lists


def is_in_effect(desired: Json, live: Json) -> bool:
    """Whether we applied exactly the fields of `desired`, and all have their values."""
    entries = (live.get("metadata") or {}).get("managedFields") or ()
    applied = [
        entry.get("fieldsV1") or {}
        for entry in entries
        if (entry.get("manager"), entry.get("operation")) == (FIELD_MANAGER, "Apply")
        and not entry.get("subresource")
    ]
    return len(applied) == 1 and _names_only(applied[0], desired) and _covers(live, desired)


def _names_only(fields: Json, desired: Any) -> bool:
    """Whether `desired` has all these managed fields; items of lists are compared by value."""
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
