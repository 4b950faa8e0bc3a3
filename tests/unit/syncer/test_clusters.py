"""Which replica of the proxier a virtual node points at."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.syncer.clusters import ProxierPod, chosen_replica


def replica(
    address: str,
    *,
    ready: str = "True",
    phase: str = "Running",
    deleted: str | None = None,
) -> ProxierPod:
    return msgspec.convert(
        {
            "metadata": {"name": f"proxier-{address}", "deletionTimestamp": deleted},
            "status": {
                "phase": phase,
                "podIP": address,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        ProxierPod,
    )


NOW = "2026-06-01T00:00:00Z"
NODES = [f"vnode-w-n{n}" for n in range(400)]


@pytest.mark.parametrize(
    ("replicas", "address"),
    [
        ([], ""),
        ([replica("", phase="Pending", ready="False")], ""),
        ([replica("10.0.0.1", phase="Failed", ready="False")], ""),
        ([replica("10.0.0.1", ready="False"), replica("10.0.0.2")], "10.0.0.2"),
        ([replica("10.0.0.1", deleted=NOW), replica("10.0.0.2")], "10.0.0.2"),
        ([replica("10.0.0.1", ready="False"), replica("10.0.0.2", deleted=NOW)], "10.0.0.1"),
        ([replica("10.0.0.2", deleted=NOW)], "10.0.0.2"),
    ],
)
def test_nodes_point_at_a_replica_that_is_ready_where_there_is_one(
    replicas: list[ProxierPod], address: str
) -> None:
    for node in NODES[:50]:
        assert chosen_replica(replicas, node) == address
        assert chosen_replica(replicas[::-1], node) == address


def test_a_replica_without_conditions_is_not_ready() -> None:
    silent = msgspec.convert(
        {"metadata": {"name": "a"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}},
        ProxierPod,
    )
    assert not silent.ready
    for node in NODES[:50]:
        assert chosen_replica([silent, replica("10.0.0.2")], node) == "10.0.0.2"


def pointing(replicas: list[ProxierPod]) -> dict[str, str]:
    return {node: chosen_replica(replicas, node) for node in NODES}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_nodes_are_spread_over_all_replicas(count: int) -> None:
    replicas = [replica(f"10.0.0.{n}") for n in range(count)]
    addresses = [*pointing(replicas).values()]
    fair = len(NODES) / count
    for each in replicas:
        assert 0.7 * fair < addresses.count(each.address) < 1.3 * fair


@given(
    addresses=st.sets(st.integers(1, 250), min_size=2, max_size=6),
    data=st.data(),
)
def test_only_the_nodes_of_a_replica_move_when_it_goes_or_comes(
    addresses: set[int], data: st.DataObject
) -> None:
    replicas = [replica(f"10.0.0.{n}") for n in sorted(addresses)]
    gone = data.draw(st.sampled_from(replicas))
    how = data.draw(st.sampled_from(["away", "unready", "leaving"]))
    left = [each for each in replicas if each is not gone]
    rest = {
        "away": left,
        "unready": [*left, replica(gone.address, ready="False")],
        "leaving": [*left, replica(gone.address, deleted=NOW)],
    }[how]
    before, after = pointing(replicas), pointing(rest)
    moved = {node for node in NODES if before[node] != after[node]}
    assert moved == {node for node in NODES if before[node] == gone.address}


def test_no_node_moves_while_no_replica_is_ready() -> None:
    replicas = [replica("10.0.0.1"), replica("10.0.0.2")]
    assert pointing(replicas) == pointing([replica(each.address, ready="") for each in replicas])
