"""Totals of the requests on a node, compared with the sums over all pods."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeocean.leasing.amounts import Amounts
from kubeocean.leasing.requests import NodeUsage
from kubeocean.runtime.quantity import ZERO, Quantity

uids = st.sampled_from("abcdefgh")
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods"]), st.integers(0, 5).map(Quantity.milli)
)


def sum_of(lists: list[Amounts]) -> Amounts:
    """Return the sums; resources with a sum of zero are omitted."""
    names = {name for each in lists for name in each}
    total = {n: Quantity(sum(each.get(n, ZERO).nano for each in lists)) for n in names}
    return {name: amount for name, amount in total.items() if amount}


class Usage(RuleBasedStateMachine):
    """Pods are added, changed and removed in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = NodeUsage()
        self.pods: dict[str, tuple[Amounts, bool]] = {}

    @rule(uid=uids, amounts=amounts, ours=st.booleans())
    def put_a_pod(self, uid: str, amounts: Amounts, ours: bool) -> None:
        before = self.pods.get(uid)
        changed = self.usage.put(uid, amounts, ours=ours)
        if amounts:
            self.pods[uid] = (amounts, ours)
        else:
            self.pods.pop(uid, None)
        assert changed == (before != self.pods.get(uid))

    @rule(uid=uids)
    def drop_a_pod(self, uid: str) -> None:
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
