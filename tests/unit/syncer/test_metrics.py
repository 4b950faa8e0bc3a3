"""Metrics of a binding: units, which pods count, and counters by phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json, decode_object, encode
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.metrics import PHASES, RESOURCES, PhaseCounter, in_units, is_counted
from kubeocean.syncer.pods.views import VirtualPod


def pod(phase: str = "Running", *, node: str = "vnode-a", **metadata: object) -> VirtualPod:
    body: Json = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", **metadata},
        "spec": {"nodeName": node},
        "status": {"phase": phase} if phase else {},
    }
    return decode_object(VirtualPod, encode(body), keep_raw=False)


def owned_by(kind: str) -> list[Json]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}]


@pytest.mark.parametrize(
    ("resource", "amount", "number"),
    [
        ("cpu", "1500m", 1500),
        ("cpu", "32", 32_000),
        ("memory", "128Gi", 131_072),
        ("memory", "1536Ki", 1.5),
        ("ephemeral-storage", "1M", 1e6 / 2**20),
        ("gocrane.io/cpu", "2", 2000),
        ("gocrane.io/memory", "1Gi", 1024),
        ("nvidia.com/gpu", "8", 8),
        ("tke.cloud.tencent.com/eni-ip", "30", 30),
    ],
)
def test_amounts_have_the_units_of_the_contract(resource: str, amount: str, number: float) -> None:
    assert in_units(resource, Quantity.parse(amount)) == number


def test_ten_resources_have_metrics() -> None:
    assert len(RESOURCES) == 10
    assert "pods" not in RESOURCES


@pytest.mark.parametrize(
    ("metadata", "counts"),
    [
        ({}, True),
        ({"ownerReferences": owned_by("ReplicaSet")}, True),
        ({"ownerReferences": owned_by("DaemonSet")}, False),
        (
            {
                "ownerReferences": owned_by("DaemonSet"),
                "annotations": {DEFAULT.running_daemonset: "true"},
            },
            True,
        ),
        ({"namespace": "kube-system"}, False),
        ({"namespace": DEFAULT.system_namespace}, False),
        ({"namespace": DEFAULT.host_port_namespace}, False),
    ],
)
def test_system_pods_and_daemons_are_not_counted(metadata: Json, counts: bool) -> None:
    assert is_counted(pod(**metadata), DEFAULT) is counts


def test_a_pod_is_counted_on_its_node_and_in_its_phase() -> None:
    counter = PhaseCounter[VirtualPod](lambda pod: pod.spec.node_name)
    pending, running = pod("Pending"), pod("Running")
    counter.follow(None, pending)
    assert counter.on({"vnode-a"}) == dict.fromkeys(PHASES, 0) | {"Pending": 1}
    counter.follow(pending, running)
    assert counter.on({"vnode-a"}) == dict.fromkeys(PHASES, 0) | {"Running": 1}
    assert counter.on({"vnode-b"}) == dict.fromkeys(PHASES, 0)
    counter.follow(running, None)
    assert len(counter) == 0


def test_an_unexpected_phase_counts_as_unknown() -> None:
    counter = PhaseCounter[VirtualPod](lambda pod: pod.spec.node_name)
    counter.follow(None, pod(""))
    counter.follow(None, pod("Novel"))
    assert counter.on({"vnode-a"})["Unknown"] == 2


def test_a_pod_without_a_node_is_not_counted() -> None:
    counter = PhaseCounter[VirtualPod](lambda pod: "")
    counter.follow(None, pod())
    assert len(counter) == 0


POD = st.builds(pod, st.sampled_from([*PHASES, ""]), node=st.sampled_from(["vnode-a", "vnode-b"]))


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | POD)))
def test_counting_changes_gives_what_counting_all_pods_gives(
    changes: list[tuple[int, VirtualPod | None]],
) -> None:
    counter = PhaseCounter[VirtualPod](lambda pod: pod.spec.node_name)
    current: dict[int, VirtualPod | None] = {}
    for which, new in changes:
        counter.follow(current.get(which), new)
        current[which] = new
    left = [each for each in current.values() if each is not None]
    for node in ("vnode-a", "vnode-b"):
        phases = [each.status.phase or "Unknown" for each in left if each.spec.node_name == node]
        assert counter.on({node}) == {phase: phases.count(phase) for phase in PHASES}
    assert len(counter) <= len(left)
