"""Keeps statuses with the reports of members below the size that etcd accepts. Pure.

Members write the texts: messages of conditions, values of fields, names of objects. The report of
one member must not keep the hub from writing a status in which other members are, so each cluster
has an equal share of the size, and what a cluster does not use goes to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from kubeocean.api.fleet.bindings import ResourceBindingStatus
from kubeocean.api.fleet.placements import ClusterPlacementStatus, PatchDetail
from kubeocean.runtime.objects import Condition

__all__ = ["MOST_BYTES", "fair_share", "fitted", "stored_size"]

MOST_BYTES: Final = 1_000_000  # of a status; etcd accepts objects of 1.5 MiB
_LONGEST_TEXT: Final = 1000  # characters of a text in a status that was too large
# Characters that API servers store as six, such as \u003c
_ESCAPED: Final = (b"<", b">", b"&")

Detailed = TypeVar("Detailed", ResourceBindingStatus, ClusterPlacementStatus)


def stored_size(part: object) -> int:
    """Return approximately how many bytes an API server stores for a part of an object."""
    encoded = msgspec.json.encode(part)
    return len(encoded) + 5 * sum(map(encoded.count, _ESCAPED))


def fair_share(sizes: Iterable[int], most: int) -> int:
    """Return the largest limit with which the sizes, each cut to it, sum up to at most `most`."""
    ascending = sorted(sizes)
    left = max(most, 0)
    for position, size in enumerate(ascending):
        share = left // (len(ascending) - position)
        if size > share:
            return share
        left -= size
    return ascending[-1] if ascending else 0


def fitted(status: Detailed, most: int = MOST_BYTES) -> Detailed:
    """Return the status of a binding, or of one cluster, with details of at most `most` bytes.

    Long texts are cut first; then the last objects of each list are left out.
    """
    if not _has_details(status) or stored_size(status) <= most:
        return status
    status = msgspec.structs.replace(
        status,
        failed_placements=tuple(
            msgspec.structs.replace(each, condition=_with_short_message(each.condition))
            for each in status.failed_placements
        ),
        drifted_placements=tuple(
            msgspec.structs.replace(each, observed_drifts=_shortened(each.observed_drifts))
            for each in status.drifted_placements
        ),
        diffed_placements=tuple(
            msgspec.structs.replace(each, observed_diffs=_shortened(each.observed_diffs))
            for each in status.diffed_placements
        ),
    )
    while _has_details(status) and stored_size(status) > most:
        status = msgspec.structs.replace(
            status,
            failed_placements=_first_half(status.failed_placements),
            drifted_placements=_first_half(status.drifted_placements),
            diffed_placements=_first_half(status.diffed_placements),
        )
    return status


def _has_details(status: ResourceBindingStatus | ClusterPlacementStatus) -> bool:
    return bool(status.failed_placements or status.drifted_placements or status.diffed_placements)


T = TypeVar("T")


def _first_half(details: Sequence[T]) -> tuple[T, ...]:
    return tuple(details[: len(details) // 2])


def _with_short_message(condition: Condition) -> Condition:
    return msgspec.structs.replace(condition, message=_short(condition.message))


def _shortened(details: Iterable[PatchDetail]) -> tuple[PatchDetail, ...]:
    return tuple(
        PatchDetail(_short(each.path), _short(each.value_in_member), _short(each.value_in_hub))
        for each in details
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
