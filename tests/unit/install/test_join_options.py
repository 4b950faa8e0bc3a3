"""Options of a repeated join: kept, changed, and described."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.bindings import BindingSpec
from kubeocean.api.policies import PolicySpec, ResourceLimit, TimeWindow
from kubeocean.errors import ConfigError
from kubeocean.install.join_options import JoinOptions, Present, changes, requested
from kubeocean.install.roles import AddOn
from kubeocean.install.values import LENDABLE, PodSecurity, WorkerValues, node_selector
from kubeocean.install.worker_admission import selector_of, terms_of

HALF = (ResourceLimit("cpu", percent=50),)
NIGHT = (TimeWindow("20:00", "06:00"),)
NAMED = JoinOptions(name="berlin")
BATCH = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["batch"]}]}
    ]
}


def lease(options: JoinOptions, policy: PolicySpec | None = None) -> PolicySpec:
    made = requested(options, Present(policy=policy)).lease
    assert made is not None
    return made


def test_a_new_window_reclaims_at_its_end_after_a_grace() -> None:
    made = lease(replace(NAMED, windows=NIGHT))
    assert (made.force_reclaim, made.graceful_reclaim_period_seconds) == (True, 300)
    made = lease(replace(NAMED, windows=NIGHT, grace_s=0))
    assert (made.force_reclaim, made.graceful_reclaim_period_seconds) == (True, 0)
    made = lease(replace(NAMED, windows=NIGHT, force_reclaim=False))
    assert (made.force_reclaim, made.graceful_reclaim_period_seconds) == (False, 0)
    assert not lease(replace(NAMED, limits=HALF)).force_reclaim


def test_a_window_that_is_changed_keeps_limits_and_reclaim() -> None:
    stored = PolicySpec("berlin", resource_limits=HALF, time_windows=NIGHT, time_zone="UTC")
    other = (TimeWindow("18:00", "06:00"),)
    made = lease(replace(NAMED, windows=other), stored)
    assert made.resource_limits == HALF
    assert (made.time_windows, made.time_zone, made.force_reclaim) == (other, "UTC", False)
    made = lease(replace(NAMED, limits=()), stored)
    assert (made.resource_limits, made.time_windows) == (None, NIGHT)
    assert lease(replace(NAMED, grace_s=7), stored).graceful_reclaim_period_seconds == 7


def test_tolerations_keep_pods_past_a_window_only_by_policies_that_join_did_not_create() -> None:
    assert not lease(replace(NAMED, windows=NIGHT)).respects_tolerations
    stored = PolicySpec("berlin", time_windows=NIGHT)
    assert lease(replace(NAMED, limits=HALF), stored).respects_tolerations


def test_fields_of_the_policy_that_no_option_has_are_kept() -> None:
    stored = PolicySpec("berlin", time_windows=NIGHT, max_evictions_per_minute=3)
    assert lease(replace(NAMED, limits=HALF), stored).max_evictions_per_minute == 3


@pytest.mark.parametrize(
    "options", [{"time_zone": "UTC"}, {"grace_s": 1}, {"force_reclaim": False}]
)
def test_an_option_of_a_policy_needs_a_policy(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="needs --lease or --between"):
        requested(replace(NAMED, **options), Present())


def test_a_join_without_options_keeps_all_values() -> None:
    worker = WorkerValues(
        namespace="team",
        add_ons=tuple(AddOn),
        quota={"pods": "5"},
        isolated=True,
        egress=False,
        pod_security=PodSecurity.PRIVILEGED,
        nodes=BATCH,
        max_grace_s=7,
    )
    binding = BindingSpec(
        cluster_id="b1",
        node_selector=BATCH,
        mount_namespace="team",
        service_namespaces=("a",),
        pod_priority_class_name="spot",
        direct_scheduling=True,
    )
    present = Present(binding=binding, worker=worker, server="https://w:1", policy=PolicySpec("x"))
    request = requested(NAMED, present)
    assert changes(present, request) == ()
    assert request.worker == worker
    assert request.lease is None
    assert (request.server, request.spec.cluster_id) == ("https://w:1", "b1")
    assert request.spec.pod_priority_class_name == "spot"


def test_changes_are_described() -> None:
    present = Present(
        binding=BindingSpec(node_selector=BATCH, mount_namespace="kubeocean-worker"),
        worker=WorkerValues(nodes=BATCH, isolated=True),
        policy=PolicySpec("berlin", resource_limits=HALF, time_windows=NIGHT),
    )
    options = replace(
        NAMED,
        limits=(),
        nodes=None,
        quota={},
        isolated=False,
        add_ons=(),
        pod_security=PodSecurity.PRIVILEGED,
    )
    assert changes(present, requested(options, present)) == (
        "add-ons: volumes, node-labels, metrics, renewal -> none",
        "quota: services.loadbalancers=0, services.nodeports=0 -> none",
        "isolated from other namespaces: yes -> no",
        "PodSecurity level: baseline -> privileged",
        "nodes that pods may use: pool In batch -> all",
        "nodes: pool In batch -> all",
        "limits: cpu=50% -> none",
    )


def test_a_worker_of_an_earlier_version_gets_its_limits_as_a_change() -> None:
    earlier = WorkerValues(pod_security=PodSecurity.PRIVILEGED, egress=False, nodes=None)
    present = Present(binding=BindingSpec(), worker=earlier, outdated=True)
    assert changes(present, requested(NAMED, present)) == (
        "egress policy: no -> yes",
        "PodSecurity level: privileged -> baseline",
    )


def test_a_second_binding_does_not_limit_the_first_one_of_its_namespace() -> None:
    worker = WorkerValues(nodes=BATCH, add_ons=tuple(AddOn), priority_classes=("spot",))
    present = Present(worker=worker, neighbours=("first",))
    request = requested(NAMED, present)
    assert terms_of(request.worker.nodes) == [*terms_of(BATCH), *terms_of(LENDABLE)]
    assert request.spec.node_selector == LENDABLE
    assert request.worker.add_ons == tuple(AddOn)
    assert request.worker.priority_classes == ("spot",)
    alone = requested(NAMED, replace(present, neighbours=()))
    assert alone.worker.nodes == LENDABLE


_words = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@given(
    st.lists(
        st.lists(
            st.one_of(
                st.builds("{} Exists".format, _words),
                st.builds("{} In {},{}".format, _words, _words, _words),
            ),
            min_size=1,
            max_size=3,
        ),
        max_size=3,
    )
)
def test_terms_of_a_selector_are_read_back(terms: list[list[str]]) -> None:
    assert terms_of(selector_of(terms)) == terms


def test_nodes_are_a_label_selector() -> None:
    assert node_selector("all") is None
    assert terms_of(node_selector("pool=batch,!gpu")) == [["gpu DoesNotExist", "pool In batch"]]
    for text in ("", "a b", "pool in (", "=x"):
        with pytest.raises(ConfigError, match="--nodes: must be all or a label selector"):
            node_selector(text)
