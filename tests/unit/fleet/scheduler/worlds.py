"""Generated fleets, policies and bindings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

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
    read_term_selector,
)
from unit.fleet.scheduler.builders import HEALTHY, NOW, decided, pick_all, spread_over
from unit.fleet.scheduler.reference import VALUES

NAMES = [f"c{number}" for number in range(9)]
KEYS = ["zone", "rack"]
PROPERTIES = ["nodes", "cost"]
STALE = NOW - timedelta(minutes=6)

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from("xyz"))
taints = st.lists(
    st.builds(ClusterTaint, st.sampled_from(["k1", "k2"]), st.sampled_from(["", "v"])), max_size=2
).map(tuple)
# Mostly healthy, so that worlds have something to pick.
agents = st.sampled_from(
    [HEALTHY] * 8
    + [
        None,
        AgentView(),
        replace(HEALTHY, heartbeat=STALE),
        replace(HEALTHY, joined="Unknown"),
        replace(HEALTHY, healthy="False", healthy_since=STALE),
        replace(HEALTHY, healthy="False", healthy_since=NOW),
    ]
)
values = st.sampled_from([*VALUES, "v1.34.1", "", "12 apples"])


def views(name: str) -> st.SearchStrategy[MemberView]:
    """Return clusters of one name."""
    return st.builds(
        MemberView,
        st.just(name),
        labels,
        st.one_of(st.just(()), st.just(()), taints),
        st.sampled_from([False] * 9 + [True]),
        agents,
        st.dictionaries(st.sampled_from(PROPERTIES), values),
        namespaces=st.sampled_from([None, {}, {"shop": ""}, {"shop": "work"}]),
        collects_namespaces=st.booleans(),
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[MemberView]:
    """Return fleets of different names."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return [draw(views(name)) for name in names]


selectors = st.one_of(
    st.none(), labels.map(lambda wanted: read_term_selector({"matchLabels": wanted}))
)
requirements = st.builds(
    PropertyRequirement,
    st.sampled_from(PROPERTIES),
    st.sampled_from(["Gt", "Ge", "Eq", "Ne", "Lt", "Le"]),
    st.tuples(st.sampled_from([*VALUES, "many"])),
)
terms = st.builds(ClusterTerm, selectors, st.lists(requirements, max_size=2).map(tuple))
sorters = st.builds(
    PropertySorter, st.sampled_from(PROPERTIES), st.sampled_from(["Ascending", "Descending"])
)
preferences = st.builds(
    PreferredTerm, st.integers(-100, 100), selectors, st.one_of(st.none(), sorters)
)
tolerations = st.sampled_from(
    [
        ClusterToleration(operator="Exists"),
        *(ClusterToleration(key, "Exists") for key in ("k1", "k2")),
        *(ClusterToleration(*item) for item in product(["k1", "k2"], ["Equal"], ["", "v"])),
        ClusterToleration("k1", "Exists", effect="NoExecute"),
    ]
)
constraints = st.builds(
    spread_over,
    st.sampled_from(KEYS),
    st.integers(1, 3),
    st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
)


def few(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Return tuples of at most three; half of them are empty, which restricts nothing."""
    return st.one_of(st.just(()), st.lists(strategy, max_size=3).map(tuple))


snapshots = st.sampled_from(["p-0", "p-1"])
namespaces = st.sampled_from(["", "", "shop"])
pick_all_policies = st.builds(
    pick_all,
    name=snapshots,
    namespace=namespaces,
    required=few(terms),
    tolerations=few(tolerations),
)


def pick_n_policies(wanted: st.SearchStrategy[int]) -> st.SearchStrategy[PolicyView]:
    """Return PickN policies for so many clusters."""
    return st.builds(
        pick_all,
        placement_type=st.just("PickN"),
        name=snapshots,
        namespace=namespaces,
        number_of_clusters=wanted,
        required=few(terms),
        preferred=few(preferences),
        tolerations=few(tolerations),
        spread=few(constraints),
    )


def pick_fixed_policies(least: int) -> st.SearchStrategy[PolicyView]:
    """Return PickFixed policies with at least so many names."""
    return st.builds(
        pick_all,
        placement_type=st.just("PickFixed"),
        name=snapshots,
        cluster_names=st.lists(st.sampled_from([*NAMES, "none"]), unique=True, min_size=least).map(
            tuple
        ),
    )


policies = st.one_of(
    pick_all_policies, pick_n_policies(st.integers(0, 9)), pick_fixed_policies(least=0)
)


@st.composite
def placements(draw: st.DrawFn) -> list[BindingView]:
    """Return bindings: at most one live one for each cluster, and some under deletion."""
    bindings = []
    for name in draw(st.lists(st.sampled_from([*NAMES, "gone"]), unique=True, max_size=6)):
        state = draw(st.sampled_from(["Scheduled", "Bound", "Unscheduled"]))
        score = ClusterScore(draw(st.integers(-2, 2)), draw(st.integers(-1, 1)))
        bindings.append(
            BindingView(
                f"{draw(st.sampled_from('abc'))}-{name}",
                name,
                state,
                draw(st.sampled_from(["p-0", "p-0", "p-1"])),
                draw(st.sampled_from([False] * 5 + [True])),
                draw(st.sampled_from(["Scheduled", "Bound"])) if state == "Unscheduled" else None,
                decided(name, True, "picked earlier", score),
            )
        )
    return bindings
