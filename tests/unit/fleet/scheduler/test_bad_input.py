"""Bad input: anything that an API server can store is decided without an exception."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import (
    ClusterToleration,
    PropertyRequirement,
    PropertySorter,
)
from kubeocean.api.fleet.snapshots import ClusterScore
from kubeocean.fleet.scheduler import (
    AgentView,
    BindingView,
    ClusterTerm,
    MemberView,
    PolicyView,
    PreferredTerm,
    explain,
    read_term_selector,
    schedule,
    trigger,
)
from unit.fleet.scheduler.builders import NOW, cluster, created, decided, pick_all, spread_over

names = st.sampled_from(["a", "b", "c", "", "d" * 300])
numbers = st.integers(-(10**20), 10**20)
texts = st.one_of(
    st.sampled_from(
        ["", "1", "-1", "1e999", "-1e999", "1e1000", "0.1n", "9" * 999, "9" * 2000, "Ki", "NaN"]
    ),
    st.text(max_size=8),
)
properties = st.one_of(
    st.sampled_from(["p", "resources.kubernetes-fleet.io/"]),
    st.sampled_from(["total-cpu", "available-", "free-cpu", "-", "total", "total-a-b"]).map(
        "resources.kubernetes-fleet.io/{}".format
    ),
    st.text(max_size=4),
)
tables = st.dictionaries(st.one_of(properties, st.sampled_from(["cpu", "a-b"])), texts, max_size=4)
labels = st.dictionaries(st.sampled_from(["k", "l", ""]), texts, max_size=3)
states = st.sampled_from(["Scheduled", "Bound", "Unscheduled", "", "bound"])
times = st.one_of(
    st.none(),
    st.integers(-(10**7), 10**7).map(lambda seconds: NOW + timedelta(seconds=seconds)),
    st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
)
conditions = st.sampled_from([None, "True", "False", "Unknown", ""])
json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["matchLabels", "matchExpressions", "key", "operator", "values", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
documents = st.one_of(st.none(), json)
selectors = documents.map(read_term_selector)
sets = st.sampled_from(["Gt", "Ge", "Eq", "Ne", "Lt", "Le", "In", "gt", ""])

fleets = st.lists(
    st.builds(
        MemberView,
        names,
        labels,
        st.lists(st.builds(ClusterTaint, texts, texts, texts), max_size=3).map(tuple),
        st.booleans(),
        st.one_of(st.none(), st.builds(AgentView, times, conditions, conditions, times)),
        tables,
        tables,
        tables,
        tables,
        st.one_of(st.none(), labels),
        st.booleans(),
    ),
    max_size=6,
)
policies = st.builds(
    PolicyView,
    names,
    texts,
    numbers,
    numbers,
    st.sampled_from(["PickAll", "PickN", "PickFixed", "", "pickall"]),
    st.one_of(st.none(), numbers, st.integers(0, 6)),
    st.lists(names, max_size=5).map(tuple),
    st.lists(
        st.builds(
            ClusterTerm,
            selectors,
            st.lists(
                st.builds(
                    PropertyRequirement, properties, sets, st.lists(texts, max_size=2).map(tuple)
                ),
                max_size=2,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(
            PreferredTerm,
            numbers,
            selectors,
            st.one_of(
                st.none(),
                st.builds(
                    PropertySorter, properties, st.sampled_from(["Ascending", "Descending", ""])
                ),
            ),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(ClusterToleration, texts, texts, texts, texts), max_size=3).map(tuple),
    st.lists(
        st.builds(
            spread_over,
            st.sampled_from(["k", "l", ""]),
            numbers,
            st.sampled_from(["DoNotSchedule", "ScheduleAnyway", ""]),
        ),
        max_size=3,
    ).map(tuple),
)
decisions = st.one_of(
    st.none(),
    st.builds(
        decided,
        names,
        st.booleans(),
        texts,
        st.one_of(st.none(), st.builds(ClusterScore, st.none() | numbers, st.none() | numbers)),
    ),
)
bindings = st.lists(
    st.builds(
        BindingView,
        names,
        names,
        states,
        names,
        st.booleans(),
        st.one_of(st.none(), states),
        decisions,
    ),
    max_size=6,
)


@settings(deadline=None)
@given(policies, fleets, bindings)
def test_no_input_raises(
    policy: PolicyView, fleet: list[MemberView], placement: list[BindingView]
) -> None:
    result = schedule(policy, fleet, placement, NOW)
    explain(policy, fleet, placement, NOW)
    for view in fleet:
        trigger(view, fleet[0], NOW)
    assert (result.status is None) == bool(result.problem)
    if result.status is not None:
        assert len(result.status.target_clusters) <= 1000
        assert all(len(item.reason) < 4000 for item in result.status.target_clusters)
    # A binding gets one change at most.
    changed = [
        *(id(item.binding) for item in result.changes.to_patch),
        *(id(item.binding) for item in result.changes.to_unschedule),
        *(id(item) for item in result.changes.to_release),
    ]
    assert len(changed) == len(set(changed))


@settings(deadline=None)
@given(json)
def test_any_document_is_a_selector_or_an_invalid_one(document: object) -> None:
    term = ClusterTerm(read_term_selector(document))
    schedule(pick_all(required=(term,)), [cluster("a")], [], NOW)


def test_of_clusters_with_the_same_name_one_is_considered() -> None:
    result = schedule(pick_all(), [cluster("a"), cluster("a")], [], NOW)
    assert created(result) == ["a"]
