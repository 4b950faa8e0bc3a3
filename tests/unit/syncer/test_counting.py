"""Whose node is looked at again when a pod of the worker changes."""

from __future__ import annotations

from kubeocean.api.group import DEFAULT
from kubeocean.leasing.counted import CountedPod
from kubeocean.runtime.codec import decode_object, encode
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.bottomup.counting import Counting


def pod(name: str, cpu: str, *, ours: bool, phase: str = "Running") -> CountedPod:
    labels = {DEFAULT.managed_by: DEFAULT.product} if ours else {}
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
        self.counting = Counting(DEFAULT, self.nodes.append, offer=lambda node: amounts)


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
