"""Merging of labels, annotations and taints that Kubeocean shares with users on one object.

The annotation `expected-metadata` of the object records the keys that Kubeocean last wanted. A key
that is present and not recorded belongs to a user and stays; a key that is recorded and not wanted
any more is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kubeocean.api.expected import Expected
from kubeocean.runtime.kinds import Taint

__all__ = ["Expected", "merge", "merge_taints"]


def merge(
    now: Mapping[str, str], before: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, str]:
    """Return the entries of `now` that Kubeocean did not want before, and all of `wanted`."""
    return {key: value for key, value in now.items() if key not in before} | dict(wanted)


def merge_taints(
    now: Sequence[Taint],
    before: Sequence[Taint],
    wanted: Sequence[Taint],
    *,
    owns: Callable[[str], bool],
) -> tuple[Taint, ...]:
    """Return the taints of `now` that users or other programs set, and all of `wanted`.

    Key and effect identify a taint; a taint that stays keeps the time at which it was added. A
    taint whose key `owns` accepts always counts as Kubeocean's.
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
