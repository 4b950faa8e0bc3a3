"""Tests of the counts of pods on virtual nodes."""

from __future__ import annotations

from kubeocean.inspect.pod_counts import PodCounter, PodCounts, sum_counts
from support.objects import NOW, a_pod, condition

NODE = "vnode-berlin-n1"


def test_a_list_that_starts_over_is_counted_once() -> None:
    counter = PodCounter()
    counter.count([a_pod(NODE)])
    counter.clear()
    counter.count([a_pod(NODE)])
    assert counter.usage()[NODE].pods.running == 1


def test_pods_on_other_nodes_are_not_counted() -> None:
    counter = PodCounter()
    counter.count([a_pod("node-1"), a_pod("")])
    assert counter.usage() == {}


def test_a_refused_pod_is_not_late() -> None:
    counter = PodCounter(NOW)
    created = {"creationTimestamp": "2026-11-16T10:00:00Z"}
    refused = condition("PhysicalPodCreated", "False")
    counter.count([a_pod(NODE, "Pending", metadata=created, conditions=[refused])])
    counter.count([a_pod(NODE, "Pending", metadata=created)])
    pods = counter.usage()[NODE].pods
    assert (pods.pending, pods.refused, pods.late) == (2, 1, 1)


def test_counts_are_summed_field_by_field() -> None:
    total = sum_counts([PodCounts(pending=1, late=1), PodCounts(pending=2, running=3)])
    assert total == PodCounts(pending=3, running=3, late=1)
    assert total.total == 6
