"""The running totals, against adding up all pods afresh."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeocean.leasing.amounts import Amounts, larger, read_amounts, round_down, round_up
from kubeocean.leasing.usage import NodeUsage
from kubeocean.runtime.quantity import ZERO, Quantity

uids = st.sampled_from("abcdefgh")
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods"]), st.integers(0, 5).map(Quantity.milli)
)


def sum_of(lists: list[Amounts]) -> Amounts:
    """All of them added up; what comes to nothing is left out."""
    names = {name for each in lists for name in each}
    total = {n: Quantity(sum(each.get(n, ZERO).nano for each in lists)) for n in names}
    return {name: amount for name, amount in total.items() if amount}


class Usage(RuleBasedStateMachine):
    """Pods come, change and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = NodeUsage()
        self.pods: dict[str, tuple[Amounts, bool]] = {}

    @rule(uid=uids, amounts=amounts, ours=st.booleans())
    def a_pod_is_seen(self, uid: str, amounts: Amounts, ours: bool) -> None:
        before = self.pods.get(uid)
        changed = self.usage.put(uid, amounts, ours=ours)
        if amounts:
            self.pods[uid] = (amounts, ours)
        else:
            self.pods.pop(uid, None)
        assert changed == (before != self.pods.get(uid))

    @rule(uid=uids)
    def a_pod_is_gone(self, uid: str) -> None:
        assert self.usage.drop(uid) == (self.pods.pop(uid, None) is not None)

    @invariant()
    def the_totals_are_the_sums(self) -> None:
        assert self.usage.ours == sum_of([each for each, ours in self.pods.values() if ours])
        assert self.usage.others == sum_of([each for each, ours in self.pods.values() if not ours])
        assert len(self.usage) == len(self.pods)


TestUsage = Usage.TestCase


def test_the_totals_that_were_read_stay_as_they_were() -> None:
    usage = NodeUsage()
    usage.put("a", {"cpu": Quantity.whole(1)}, ours=True)
    before = usage.ours
    usage.put("b", {"cpu": Quantity.whole(1)}, ours=True)
    assert before == {"cpu": Quantity.whole(1)}


@settings(deadline=None)
@given(st.sampled_from(["cpu", "nvidia.com/gpu", "pods"]), st.integers(-(10**10), 10**10))
def test_amounts_are_rounded_to_what_a_server_stores(resource: str, nano: int) -> None:
    step = 10**6 if resource == "cpu" else 10**9
    down, up = round_down(resource, Quantity(nano)).nano, round_up(resource, Quantity(nano)).nano
    assert down % step == up % step == 0
    assert nano - step < down <= nano <= up < nano + step


def test_an_amount_that_needs_no_rounding_stays_as_it_is_written() -> None:
    written = Quantity.parse("1.500")
    assert round_down("cpu", written) is round_up("cpu", written) is written


def test_names_of_kubernetes_own_domain_may_have_parts() -> None:
    half = Quantity.milli(500)
    for resource in ("cpu", "memory", "attachable-volumes-csi", "storage.kubernetes.io/speed"):
        assert round_down(resource, half) == half
    for resource in ("pods", "example.com/fpga"):
        assert round_down(resource, half) == ZERO


def test_the_larger_of_two_lists_is_taken_resource_by_resource() -> None:
    one = read_amounts({"cpu": "2", "memory": "1Gi"})
    other = read_amounts({"cpu": "1", "pods": "3"})
    assert larger(one, other) == read_amounts({"cpu": "2", "memory": "1Gi", "pods": "3"})
    assert read_amounts(None) == {}
