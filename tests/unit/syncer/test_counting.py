"""Whose node is looked at again when a pod of the worker changes."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, may_be_ours
from kubeocean.leasing.counted import CountedPod
from kubeocean.runtime.codec import decode_object, encode
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.bottomup.counting import Counting
from kubeocean.syncer.podviews import PhysicalPod

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


class Told:
    def __init__(self, offer: str | None) -> None:
        self.nodes: list[str] = []
        amounts = None
        if offer is not None:
            amounts = {"cpu": Quantity.parse(offer), "pods": Quantity.parse("110")}
        self.counting = Counting(
            lambda pod: may_be_ours(pod, ids=IDS, domain=DEFAULT),
            self.nodes.append,
            offer=lambda node: amounts,
        )


def test_what_others_request_always_counts() -> None:
    told = Told("4")
    one = pod("a", "1", ours=False)
    told.counting.follow(None, one)
    told.counting.follow(one, one)
    told.counting.follow(one, pod("a", "1", ours=False, phase="Succeeded"))
    assert told.nodes == ["n", "n"]


def test_what_ours_request_counts_only_where_it_reaches_the_offer() -> None:
    told = Told("4")
    small, large = pod("a", "1", ours=True), pod("b", "3", ours=True)
    told.counting.follow(None, small)
    assert told.nodes == []
    told.counting.follow(None, large)  # four of four: an offer may not fall below that
    assert told.nodes == ["n"]
    told.counting.follow(large, None)  # it may have been held up
    assert told.nodes == ["n", "n"]
    told.counting.follow(small, None)
    assert told.nodes == ["n", "n"]


def test_without_an_offer_everything_counts() -> None:
    told = Told(None)
    told.counting.follow(None, pod("a", "1", ours=True))
    assert told.nodes == ["n"]


def test_pods_of_another_binding_are_others() -> None:
    told = Told("4")
    told.counting.follow(None, pod("a", "1", ours=True, binding="another"))
    assert told.nodes == ["n"]
    assert told.counting.of("n").others["cpu"] == Quantity.parse("1")
    assert told.counting.of("n").ours == {}


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
    told = Told("4")
    waiting, running = labelled("a", "3", node=""), labelled("a", "3")
    told.counting.follow_labelled(None, waiting)
    assert not told.counting.of("n").ours
    told.counting.follow_labelled(waiting, running)
    assert told.counting.of("n").ours["cpu"] == Quantity.parse("3")
    told.counting.follow_labelled(running, None)
    assert not told.counting.of("n").ours


@pytest.mark.parametrize("first", ["gain", "loss"])
def test_a_pod_that_gets_our_label_stays_counted_whoever_tells_first(first: str) -> None:
    told = Told("4")
    stranger = pod("a", "1", ours=False)
    told.counting.follow(None, stranger)
    tell = {
        "gain": lambda: told.counting.follow_labelled(None, labelled("a", "1")),
        "loss": lambda: told.counting.follow(stranger, None),
    }
    tell.pop(first)()
    next(iter(tell.values()))()
    usage = told.counting.of("n")
    assert usage.ours["cpu"] == Quantity.parse("1")
    assert not usage.others


def test_a_pod_with_our_label_is_counted_anew_when_its_requests_may_be_others() -> None:
    told = Told("4")
    small = labelled("a", "1", generation=1)
    told.counting.follow_labelled(None, small)
    # What a generation does not stand for is not looked at again.
    told.counting.follow_labelled(small, labelled("a", "2", generation=1))
    assert told.counting.of("n").ours["cpu"] == Quantity.parse("1")
    for changed in (labelled("a", "2", generation=2), labelled("a", "2", generation=0)):
        told.counting.follow_labelled(small, changed)
        assert told.counting.of("n").ours["cpu"] == Quantity.parse("2")
        told.counting.follow_labelled(changed, labelled("a", "1", generation=9))
    told.counting.follow_labelled(small, labelled("a", "1", status={"phase": "Failed"}))
    assert not told.counting.of("n").ours


def test_what_a_kubelet_gives_back_after_a_resize_is_counted_though_it_says_no_more() -> None:
    def given(cpu: str) -> Json:
        return {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}

    told = Told("4")
    large = labelled("a", "3", status=given("3"))
    asked = labelled("a", "1", generation=2, status=given("3"))
    done = labelled("a", "1", generation=2, status=given("1"))
    told.counting.follow_labelled(None, large)
    told.counting.follow_labelled(large, asked)
    assert told.counting.of("n").ours["cpu"] == Quantity.parse("3")
    told.counting.follow_labelled(asked, done)
    assert told.counting.of("n").ours["cpu"] == Quantity.parse("1")


def test_a_node_is_looked_at_when_a_pod_of_others_becomes_ours_again() -> None:
    told = Told("4")
    ours, strange = labelled("a", "1"), labelled("a", "1", binding="another")
    told.counting.follow_labelled(None, ours)
    told.counting.follow_labelled(ours, strange)
    assert told.nodes == ["n"]
    told.counting.follow_labelled(strange, ours)  # what others do not request can be offered
    assert told.nodes == ["n", "n"]
