"""Merging of labels, annotations and taints that Kubeocean shares with users on one object.

The annotation `expected-metadata` of the object has what Kubeocean last wanted. A key that is
present and was never wanted belongs to a user and stays; one that was wanted before and is not any
more is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kubeocean.api.expected import Expected
from kubeocean.runtime.kinds import Taint

__all__ = ["Expected", "merge", "merge_patch", "merge_taints"]


def merge(
    now: Mapping[str, str], before: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, str]:
    """Return the keys of others that are present, and all that are wanted."""
    return {key: value for key, value in now.items() if key not in before} | dict(wanted)


def merge_patch(now: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str | None]:
    """Return the JSON merge patch from one map to the other."""
    removed: dict[str, str | None] = {key: None for key in now if key not in then}
    return removed | {key: value for key, value in then.items() if now.get(key) != value}


def merge_taints(
    now: Sequence[Taint],
    before: Sequence[Taint],
    wanted: Sequence[Taint],
    *,
    owns: Callable[[str], bool],
) -> tuple[Taint, ...]:
    """Return the taints of others that are present, and all that are wanted.

    Key and effect identify a taint; one that stays keeps the time at which it was added. Taints
    with a key that `owns` accepts are never of others.
    """
    ours = {_identity(taint) for taint in (*before, *wanted)}
    present = {_identity(taint): taint for taint in now}
    kept = [taint for taint in now if _identity(taint) not in ours and not owns(taint.key)]
    return (*kept, *(_with_time(taint, present.get(_identity(taint))) for taint in wanted))


def _identity(taint: Taint) -> tuple[str, str]:
    return taint.key, taint.effect


def _with_time(wanted: Taint, present: Taint | None) -> Taint:
    if wanted.time_added is not None or present is None:
        return wanted
    return msgspec.structs.replace(wanted, time_added=present.time_added)
