"""Owner's safety: of every policy that an API server accepts, the most cautious reading wins.

Policies are drawn with right and wrong limits and windows. A model, which does not use the code
under test, computes the largest amounts: the lent amounts never exceed them. The status of the
policy, and an event, name each mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.policies import (
    PolicySpec,
    PolicyStatus,
    ResourceLeasingPolicy,
    ResourceLimit,
    TimeWindow,
)
from kubeocean.leasing.cached_policy import CachedPolicy
from kubeocean.leasing.capacity import node_capacity
from kubeocean.leasing.limits import unknown_resources, withheld_resources
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.requests import NodeUsage
from kubeocean.leasing.windows import within
from kubeocean.runtime.kinds import Node, NodeStatus
from kubeocean.runtime.objects import Meta
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.nodes.policy_findings import PolicyFindings
from kubeocean.syncer.nodes.policy_status import events_of, own_status

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
NODE = {"cpu": 8, "memory": 64, "pods": 110, "nvidia.com/gpu": 4}
MISSPELLED = {"cpuu": "cpu", "CPU": "cpu", "memroy": "memory", "gpu": "nvidia.com/gpu", "xyz": ""}

names = st.sampled_from([*NODE, *MISSPELLED])
limits = st.builds(
    ResourceLimit,
    names,
    st.none() | st.integers(0, 120) | st.integers(0, 9000).map(lambda milli: f"{milli}m"),
    st.none() | st.integers(1, 100),
)
times = st.builds(
    lambda hour, minute: f"{hour:02}:{minute:02}", st.integers(0, 23), st.integers(0, 59)
)
windows = st.builds(TimeWindow, times, times)
specs = st.builds(
    PolicySpec,
    cluster=st.just("b"),
    time_windows=st.lists(windows | times.map(lambda time: TimeWindow(time, time)), max_size=2).map(
        tuple
    ),
    resource_limits=st.lists(limits, max_size=3).map(tuple),
    force_reclaim=st.booleans(),
    graceful_reclaim_period_seconds=st.integers(0, 60),
)


@dataclass
class Reading:
    """The most that the owner can have meant to lend."""

    most: dict[str, Fraction]

    @classmethod
    def of(cls, spec: PolicySpec) -> Reading:
        most = {name: Fraction(amount) for name, amount in NODE.items()}
        written = spec.resource_limits or ()
        for limit in written:
            meant = MISSPELLED.get(limit.resource, limit.resource)
            if limit.resource in MISSPELLED:
                for name in [meant] if meant else ["cpu", "memory"]:
                    most[name] = Fraction(0)
                continue
            if limit.quantity is None and limit.percent is None:
                most[meant] = Fraction(0)
            if limit.percent is not None:
                most[meant] = most[meant] * limit.percent / 100
            if limit.quantity is not None:
                amount = Fraction(Quantity.parse(limit.quantity).nano, 10**9)
                most[meant] = min(most[meant], amount)
        if written and all(limit.resource in MISSPELLED for limit in written):
            most |= {"cpu": Fraction(0), "memory": Fraction(0)}
        return cls(most)


def minute_is_lent(spec: PolicySpec, minute: int) -> bool:
    def at(text: str) -> int:
        return int(text[:2]) * 60 + int(text[3:])

    if not spec.time_windows:
        return True
    spans = [(at(window.start), at(window.end)) for window in spec.time_windows]
    return any(
        start <= minute <= end if start <= end else minute >= start or minute <= end
        for start, end in spans
    )


@settings(deadline=None)
@given(specs, st.integers(0, 24 * 60 - 1))
def test_no_more_is_lent_than_the_most_cautious_reading_of_a_policy(
    spec: PolicySpec, minute: int
) -> None:
    parsed = ParsedPolicy.of(spec, local=UTC)
    pnode = Node(status=NodeStatus(allocatable={**NODE}))
    unknown = unknown_resources(parsed.limits, NODE)
    lent = node_capacity(pnode, NodeUsage(), parsed.limits, unknown).offered
    most = Reading.of(spec).most
    for name in NODE:
        assert Fraction(lent[name].nano, 10**9) <= most[name], name
    open_ = within(parsed.calendar, MONDAY + timedelta(minutes=minute))
    assert open_ == minute_is_lent(spec, minute)


@settings(deadline=None)
@given(specs)
def test_each_mistake_that_an_api_server_accepts_is_in_the_status_and_an_event(
    spec: PolicySpec,
) -> None:
    parsed = ParsedPolicy.of(spec, local=UTC)
    unknown = unknown_resources(parsed.limits, NODE)
    findings = PolicyFindings(unknown, withheld_resources(parsed.limits, unknown, NODE))
    policy = ResourceLeasingPolicy(metadata=Meta(name="p", generation=1), spec=spec)
    cached = CachedPolicy(policy, parsed, "", parsed)
    status = own_status(cached, now=MONDAY, findings=findings)
    messages = " ".join(condition.message for condition in status.conditions or ())
    events = events_of(PolicyStatus(), status)
    expected: set[str] = set()
    for index, limit in enumerate(spec.resource_limits or ()):
        field = f"spec.resourceLimits[{index}]"
        if limit.quantity is None and limit.percent is None:
            assert f"{field}.resource: has neither" in messages
            expected.add("ProbableMistake")
        if limit.quantity in (0, "0m"):
            assert f"{field}.quantity: nothing of this resource is lent" in messages
            expected.add("ProbableMistake")
        if limit.resource not in NODE:
            assert limit.resource in messages
            expected.add("UnknownResource")
    for index, window in enumerate(spec.time_windows or ()):
        if window.start == window.end:
            assert f"spec.timeWindows[{index}].end: is the minute of the start" in messages
            expected.add("ProbableMistake")
    if spec.graceful_reclaim_period_seconds and not spec.force_reclaim:
        assert "spec.gracefulReclaimPeriodSeconds: has no effect" in messages
        expected.add("ProbableMistake")
    assert expected <= {str(event.reason) for event in events}
    assert {event.type for event in events if event.reason in expected} <= {"Warning"}


def test_a_corrected_policy_says_so_and_emits_nothing() -> None:
    spec = PolicySpec(cluster="b", resource_limits=(ResourceLimit("cpuu", percent=50),))
    policy = ResourceLeasingPolicy(metadata=Meta(name="p", generation=1), spec=spec)
    parsed = ParsedPolicy.of(spec, local=UTC)
    wrong = own_status(
        CachedPolicy(policy, parsed, "", parsed),
        now=MONDAY,
        findings=PolicyFindings(("cpuu",), ("cpu", "memory"), {"older": 2}),
    )
    by_type = {each.type: each for each in wrong.conditions or ()}
    assert by_type["UnknownResource"].status == by_type["Overlapping"].status == "True"
    assert "nothing of cpu, memory is lent" in by_type["UnknownResource"].message
    assert "2 nodes of policy older" in by_type["Overlapping"].message
    again = ResourceLeasingPolicy(metadata=policy.metadata, spec=spec, status=wrong)
    right = own_status(
        CachedPolicy(again, parsed, "", parsed), now=MONDAY, findings=PolicyFindings()
    )
    statuses = {each.type: each.status for each in right.conditions or ()}
    assert (statuses["UnknownResource"], statuses["Overlapping"]) == ("False", "False")
    assert events_of(wrong, right) == []
    unsure = PolicyFindings(overlaps=None)  # right after a start, until every node was reconciled
    kept = own_status(CachedPolicy(again, parsed, "", parsed), now=MONDAY, findings=unsure)
    assert {each.type: each.status for each in kept.conditions or ()}["Overlapping"] == "True"
