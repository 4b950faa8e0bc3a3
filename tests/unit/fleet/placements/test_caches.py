"""Tests of the fields of bindings, Works and placements that the hub's caches keep."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.placements import ClusterPlacementStatus, Placement, PlacementStatus
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.works import WorkStatus
from kubeocean.fleet.caches import prune_binding, prune_placement
from kubeocean.fleet.works.views import CachedWork, objects_digest, prune_work
from kubeocean.runtime.objects import Condition, Meta, Object, ObjectT
from unit.fleet.placements.builders import NOW, a_binding, a_placement

STEPS = ("RolloutStarted", "Overridden", "WorkSynchronized", "Applied", "Available")
CONDITIONS = tuple(
    Condition(step, "True", f"{step}Succeeded", f"{step} is as it should be", NOW, 1)
    for step in STEPS
)
BINDING = a_binding("c", conditions=CONDITIONS)
WORK = CachedWork(
    metadata=Meta(name="app-work"),
    status=WorkStatus(conditions=CONDITIONS),
    digest=objects_digest(()),
)
PLACEMENT = a_placement(
    status=PlacementStatus(
        placement_statuses=tuple(
            ClusterPlacementStatus(f"c{number}", conditions=CONDITIONS) for number in range(5)
        )
    )
)
KEPT = [
    (BINDING, Binding, prune_binding, 0.7),
    (WORK, CachedWork, prune_work, 0.7),
    (PLACEMENT, Placement, prune_placement, 0.5),
]


@pytest.mark.parametrize(("obj", "type_", "prune", "share"), KEPT)
def test_what_is_kept_is_equal_and_smaller(
    obj: ObjectT, type_: type[ObjectT], prune: Callable[[ObjectT], ObjectT], share: float
) -> None:
    assert prune(obj) == obj
    whole = _bytes_of(obj, type_, lambda each: each)
    assert _bytes_of(obj, type_, prune) < share * whole


def _bytes_of(
    obj: Object, type_: type[ObjectT], prune: Callable[[ObjectT], ObjectT], count: int = 200
) -> float:
    """Return the memory that each of many equal objects takes after it was decoded."""
    status = document(obj.status)  # type: ignore[attr-defined]
    raw = msgspec.json.encode({"metadata": {"name": obj.name}, "status": status})
    decode = msgspec.json.Decoder(type_).decode
    prune(decode(raw))
    tracemalloc.start()
    try:
        kept = [prune(decode(raw)) for _ in range(count)]
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()
