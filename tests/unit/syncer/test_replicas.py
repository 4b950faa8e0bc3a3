"""Which replica of the proxier virtual nodes point at."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.syncer.world import ProxierPod, chosen_replica


def replica(
    address: str,
    *,
    born: str = "2026-01-01T00:00:00Z",
    ready: str = "True",
    phase: str = "Running",
    deleted: str | None = None,
) -> ProxierPod:
    return msgspec.convert(
        {
            "metadata": {"creationTimestamp": born, "deletionTimestamp": deleted},
            "status": {
                "phase": phase,
                "podIP": address,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        ProxierPod,
    )


OLD = "2025-01-01T00:00:00Z"
NOW = "2026-06-01T00:00:00Z"


@pytest.mark.parametrize(
    ("replicas", "address"),
    [
        ([], ""),
        ([replica("", phase="Pending", ready="False")], ""),
        ([replica("10.0.0.1", phase="Failed", ready="False")], ""),
        ([replica("10.0.0.9", born=OLD), replica("10.0.0.1")], "10.0.0.9"),
        ([replica("10.0.0.2"), replica("10.0.0.1")], "10.0.0.1"),
        ([replica("10.0.0.1", born=OLD, ready="False"), replica("10.0.0.2")], "10.0.0.2"),
        ([replica("10.0.0.1", born=OLD, deleted=NOW), replica("10.0.0.2")], "10.0.0.2"),
        ([replica("10.0.0.1", ready="False"), replica("10.0.0.2", deleted=NOW)], "10.0.0.1"),
        ([replica("10.0.0.2", deleted=NOW)], "10.0.0.2"),
    ],
)
def test_nodes_point_at_the_oldest_replica_that_is_ready(
    replicas: list[ProxierPod], address: str
) -> None:
    assert chosen_replica(replicas) == address
    assert chosen_replica(replicas[::-1]) == address


def test_a_replica_that_says_nothing_of_itself_is_not_ready() -> None:
    silent = msgspec.convert({"status": {"phase": "Running", "podIP": "10.0.0.1"}}, ProxierPod)
    assert not silent.ready
    assert chosen_replica([silent, replica("10.0.0.2")]) == "10.0.0.2"
