"""Requests of pods, and the nodes that a change of a pod enqueues."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, may_be_ours
from kubeocean.leasing.requests import CountedPod
from kubeocean.runtime.objects import Json, decode_object, encode
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.nodes.usage import UsageTracker
from kubeocean.syncer.pods.views import PhysicalPod

IDS = Ids("b", "id", "cluster")


def pod(
    name: str, cpu: str, *, ours: bool, phase: str = "Running", binding: str = "b"
) -> CountedPod:
    labels = {DEFAULT.managed_by: DEFAULT.product, DEFAULT.cluster_binding: binding} if ours else {}
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    body = {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"nodeName": "n", "containers": [container]},
        "status": {"phase": phase},
    }
    return decode_object(CountedPod, encode(body), keep_raw=False)


class RecordedTracker:
    """A tracker that records the nodes for which its handler was called."""

    def __init__(self, offer: str | None) -> None:
        self.nodes: list[str] = []
        amounts = None
        if offer is not None:
            amounts = {"cpu": Quantity.parse(offer), "pods": Quantity.parse("110")}
        self.tracker = UsageTracker(
            lambda pod: may_be_ours(pod, ids=IDS, domain=DEFAULT),
            self.nodes.append,
            offer=lambda node: amounts,
        )


def test_requests_of_other_pods_always_enqueue_the_node() -> None:
    recorded = RecordedTracker("4")
    one = pod("a", "1", ours=False)
    recorded.tracker.follow(None, one)
    recorded.tracker.follow(one, one)
    recorded.tracker.follow(one, pod("a", "1", ours=False, phase="Succeeded"))
    assert recorded.nodes == ["n", "n"]


def test_requests_of_our_pods_enqueue_the_node_only_if_they_reach_the_offer() -> None:
    recorded = RecordedTracker("4")
    small, large = pod("a", "1", ours=True), pod("b", "3", ours=True)
    recorded.tracker.follow(None, small)
    assert recorded.nodes == []
    recorded.tracker.follow(None, large)  # four of four: the offer may not fall below that
    assert recorded.nodes == ["n"]
    recorded.tracker.follow(large, None)  # the offer may have been raised to it
    assert recorded.nodes == ["n", "n"]
    recorded.tracker.follow(small, None)
    assert recorded.nodes == ["n", "n"]


def test_without_a_known_offer_every_change_enqueues_the_node() -> None:
    recorded = RecordedTracker(None)
    recorded.tracker.follow(None, pod("a", "1", ours=True))
    assert recorded.nodes == ["n"]


def test_pods_of_another_binding_are_others() -> None:
    recorded = RecordedTracker("4")
    recorded.tracker.follow(None, pod("a", "1", ours=True, binding="another"))
    assert recorded.nodes == ["n"]
    assert recorded.tracker.of("n").others["cpu"] == Quantity.parse("1")
    assert recorded.tracker.of("n").ours == {}


def labelled(
    name: str,
    cpu: str,
    *,
    node: str = "n",
    generation: int = 1,
    status: Json | None = None,
    binding: str = "b",
) -> PhysicalPod:
    labels = {DEFAULT.managed_by: DEFAULT.product, DEFAULT.cluster_binding: binding}
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    body = {
        "metadata": {"name": name, "uid": name, "labels": labels, "generation": generation},
        "spec": {"nodeName": node, "containers": [container]},
        "status": status or {},
    }
    return decode_object(PhysicalPod, encode(body), keep_raw=True)


def test_pods_with_our_label_are_counted_from_their_own_cache() -> None:
    recorded = RecordedTracker("4")
    waiting, running = labelled("a", "3", node=""), labelled("a", "3")
    recorded.tracker.follow_labelled(None, waiting)
    assert not recorded.tracker.of("n").ours
    recorded.tracker.follow_labelled(waiting, running)
    assert recorded.tracker.of("n").ours["cpu"] == Quantity.parse("3")
    recorded.tracker.follow_labelled(running, None)
    assert not recorded.tracker.of("n").ours


@pytest.mark.parametrize("first", ["gain", "loss"])
def test_a_pod_that_gets_our_label_stays_counted_in_any_order_of_events(first: str) -> None:
    recorded = RecordedTracker("4")
    foreign = pod("a", "1", ours=False)
    recorded.tracker.follow(None, foreign)
    events = {
        "gain": lambda: recorded.tracker.follow_labelled(None, labelled("a", "1")),
        "loss": lambda: recorded.tracker.follow(foreign, None),
    }
    events.pop(first)()
    next(iter(events.values()))()
    usage = recorded.tracker.of("n")
    assert usage.ours["cpu"] == Quantity.parse("1")
    assert not usage.others


def test_a_pod_with_our_label_is_counted_again_when_its_requests_may_have_changed() -> None:
    recorded = RecordedTracker("4")
    small = labelled("a", "1", generation=1)
    recorded.tracker.follow_labelled(None, small)
    # A pod with an unchanged generation is not counted again.
    recorded.tracker.follow_labelled(small, labelled("a", "2", generation=1))
    assert recorded.tracker.of("n").ours["cpu"] == Quantity.parse("1")
    for changed in (labelled("a", "2", generation=2), labelled("a", "2", generation=0)):
        recorded.tracker.follow_labelled(small, changed)
        assert recorded.tracker.of("n").ours["cpu"] == Quantity.parse("2")
        recorded.tracker.follow_labelled(changed, labelled("a", "1", generation=9))
    recorded.tracker.follow_labelled(small, labelled("a", "1", status={"phase": "Failed"}))
    assert not recorded.tracker.of("n").ours


def test_resources_that_a_resize_frees_are_counted() -> None:
    def given(cpu: str) -> Json:
        return {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}

    recorded = RecordedTracker("4")
    large = labelled("a", "3", status=given("3"))
    resized = labelled("a", "1", generation=2, status=given("3"))
    done = labelled("a", "1", generation=2, status=given("1"))
    recorded.tracker.follow_labelled(None, large)
    recorded.tracker.follow_labelled(large, resized)
    assert recorded.tracker.of("n").ours["cpu"] == Quantity.parse("3")
    recorded.tracker.follow_labelled(resized, done)
    assert recorded.tracker.of("n").ours["cpu"] == Quantity.parse("1")


def test_a_node_is_enqueued_when_a_pod_of_others_becomes_ours_again() -> None:
    recorded = RecordedTracker("4")
    ours, foreign = labelled("a", "1"), labelled("a", "1", binding="another")
    recorded.tracker.follow_labelled(None, ours)
    recorded.tracker.follow_labelled(ours, foreign)
    assert recorded.nodes == ["n"]
    recorded.tracker.follow_labelled(foreign, ours)  # the requests of others are lower now
    assert recorded.nodes == ["n", "n"]


def test_a_pod_of_ours_that_shrinks_below_the_offer_enqueues_its_node() -> None:
    recorded = RecordedTracker("4")
    large = pod("a", "6", ours=True)
    recorded.tracker.follow(None, large)
    recorded.tracker.follow(large, pod("a", "1", ours=True))
    assert recorded.nodes == ["n", "n"]


def test_a_labelled_pod_without_a_node_is_not_counted() -> None:
    recorded = RecordedTracker(None)
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    labels = {DEFAULT.managed_by: DEFAULT.product}
    body = {"metadata": {"name": "a", "uid": "a", "labels": labels}}
    raw = encode(body | {"spec": {"containers": [container]}})
    recorded.tracker.follow_labelled(None, decode_object(PhysicalPod, raw, keep_raw=True))
    assert recorded.nodes == []
    assert len(recorded.tracker.of("")) == 0
