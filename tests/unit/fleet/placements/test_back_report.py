"""Which statuses that members report are written onto the hub's objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.placements import (
    ClusterPlacementStatus,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
)
from kubeocean.api.fleet.strategies import ReportBackStrategy, RolloutStrategy
from kubeocean.api.fleet.works import (
    BackReportedStatus,
    ManifestCondition,
    WorkResourceIdentifier,
    WorkStatus,
)
from kubeocean.fleet.back_report.plan import (
    Claims,
    Original,
    has_same_claims,
    kept_condition,
    not_on_one_cluster,
    picked_clusters,
    reporting_binding,
    reports_of,
    result_of,
    status_patch,
    without_back_report,
)
from kubeocean.fleet.extensions import OURS, UPSTREAM
from kubeocean.fleet.works.views import CachedWork, CachedWorkSpec, prune_work, reported_status
from kubeocean.runtime.objects import Json, Key, Meta
from unit.fleet.placements.builders import (
    NOW,
    a_binding,
    a_placement,
    a_policy_snapshot,
    a_work,
    condition,
    scheduled,
)

MIRROR = ReportBackStrategy(type="Mirror", destination="OriginalResource")
WORK_API = ReportBackStrategy(type="Mirror", destination="WorkAPI")
STATUS: Json = {"replicas": 1}
LATER = "2026-01-02T00:00:00Z"


def entry(
    name: str = "web", *, kind: str = "Deployment", applied: str = "True", observed: Any = None
) -> ManifestCondition:
    if observed is None:
        observed = {"apiVersion": "apps/v1", "kind": kind, "status": STATUS}
    return ManifestCondition(
        identifier=WorkResourceIdentifier(
            group="apps", version="v1", kind=kind, namespace="ns", name=name
        ),
        conditions=(condition("Applied", applied), condition("Available")),
        back_reported_status=BackReportedStatus(observed, NOW),
    )


def work(*entries: ManifestCondition, strategy: ReportBackStrategy = MIRROR) -> CachedWork:
    plain: CachedWork = a_work(status=WorkStatus(manifest_conditions=entries))
    spec = CachedWorkSpec(report_back_strategy=strategy)
    return prune_work(msgspec.structs.replace(plain, spec=spec))


def original(name: str = "web", *, kind: str = "Deployment", version: str = "v1") -> Original:
    return Original.of(
        ResourceIdentifier(group="apps", version=version, kind=kind, namespace="ns", name=name)
    )


# Reports of Works


def test_the_cache_keeps_a_hash_of_each_status_and_not_the_status() -> None:
    cached = work(entry(), entry("failed", applied="False"))
    assert [each.identifier.name for each in cached.reported] == ["web"]
    (notable,) = cached.status.manifest_conditions
    assert notable.identifier.name == "failed"
    assert notable.back_reported_status is None
    other = work(entry(observed={"apiVersion": "apps/v1", "kind": "Deployment", "status": {}}))
    assert other.reported[0].digest != cached.reported[0].digest


@pytest.mark.parametrize("strategy", [ReportBackStrategy(), WORK_API])
def test_other_strategies_report_nothing_to_the_hub(strategy: ReportBackStrategy) -> None:
    assert work(entry(), strategy=strategy).reported == ()


@pytest.mark.parametrize(
    "observed",
    [
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "apps/v2", "kind": "Deployment", "status": STATUS},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "status": STATUS},
        {},
        "text",
        [],
    ],
)
def test_a_status_of_another_kind_is_no_report(observed: Any) -> None:
    assert reported_status(entry(observed=observed)) is None


def test_only_selected_objects_get_a_status() -> None:
    works = [work(entry("web"), entry("other"))]
    assert reports_of(works, "a", {original()}).keys() == {original()}
    assert reports_of(works, "a", set()) == {}
    assert reports_of(works, "b", {original()}) == {}, "the Work is of another cluster"


def test_a_work_that_is_deleted_reports_nothing() -> None:
    leaving = work(entry())
    metadata = msgspec.structs.replace(leaving.metadata, deletion_timestamp=NOW)
    assert (
        reports_of([msgspec.structs.replace(leaving, metadata=metadata)], "a", {original()}) == {}
    )


@pytest.mark.parametrize(
    ("group", "kind", "is_kept"),
    [
        ("", "Namespace", True),
        ("", "ResourceQuota", True),
        ("", "PersistentVolume", True),
        ("apiextensions.k8s.io", "CustomResourceDefinition", True),
        ("apiregistration.k8s.io", "APIService", True),
        ("", "Service", False),
        ("batch", "Job", False),
        ("example.com", "Namespace", False),
    ],
)
def test_kinds_on_whose_status_the_hub_acts(group: str, kind: str, is_kept: bool) -> None:
    identifier = ResourceIdentifier(group=group, version="v1", kind=kind, name="x")
    assert Original.of(identifier).has_status_of_the_hub == is_kept


# The only cluster


def test_the_binding_of_the_only_cluster_counts() -> None:
    snapshot = scheduled(a_policy_snapshot(a_placement()), "a", rejected=("b",))
    assert picked_clusters(snapshot) == ("a",)
    bound = a_binding("a")
    others = [
        a_binding("b"),
        a_binding("a", state="Unscheduled"),
        a_binding("a", state="Scheduled"),
        a_binding("a", policy="app-9"),
        a_binding("a", deleting=True),
    ]
    assert reporting_binding([*others, bound], "a", snapshot.name) is bound
    assert reporting_binding(others, "a", snapshot.name) is None


# Writes and results


def test_a_patch_names_the_object_and_replaces_the_whole_status() -> None:
    assert status_patch("u", "7", STATUS) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": STATUS},
    ]


def test_results_in_words() -> None:
    assert not_on_one_cluster(0).message.endswith("; no cluster is picked")
    assert not_on_one_cluster(3).message.endswith("; 3 clusters are picked")
    both = {original("a"), original("b")}
    assert result_of(both, {}).message == (
        "The status of 2 objects is written onto the hub's objects"
    )
    failed = result_of(both, {original("b"): "no", original("a"): "never"})
    assert (failed.status, failed.reason) == ("False", "StatusReportBackFailed")
    assert (
        failed.message == "The status of Deployment ns/a is not written: never; nor that of 1 more"
    )


def test_a_condition_keeps_its_time_and_belongs_to_the_generation() -> None:
    type_ = "ClusterResourcePlacementStatusReportedBack"
    before = (condition("x"), condition(type_, "True", generation=1))
    placement = a_placement(generation=2, status=PlacementStatus(conditions=before))
    shown = result_of({original()}, {}).condition(placement, LATER)
    assert (shown.type, shown.last_transition_time, shown.observed_generation) == (type_, NOW, 2)
    assert not_on_one_cluster(2).condition(placement, LATER).last_transition_time == LATER
    assert kept_condition(placement) == before[1]
    assert without_back_report(placement, before) == before[:1]
    assert OURS.report_back(shown) == (shown,)
    assert OURS.report_back(None) == UPSTREAM.report_back(shown) == ()


# Several placements


def claiming(
    name: str,
    *objects: str,
    strategy: ReportBackStrategy = MIRROR,
    clusters: tuple[str, ...] = ("a",),
    version: str = "v1",
) -> Placement:
    placement = a_placement(
        strategy=RolloutStrategy(report_back_strategy=strategy),
        status=PlacementStatus(
            selected_resources=tuple(
                ResourceIdentifier(
                    group="apps", version=version, kind="Deployment", namespace="ns", name=each
                )
                for each in objects
            ),
            placement_statuses=tuple(ClusterPlacementStatus(each) for each in clusters),
        ),
    )
    return msgspec.structs.replace(placement, metadata=Meta(name=name, uid=f"uid-{name}"))


def test_two_placements_of_one_object_know_each_other() -> None:
    claims, one, two = Claims(), Key("", "one"), Key("", "two")
    assert claims.update(one, claiming("one", "web")) == set()
    assert claims.others(one, original()) == set()
    # For every version of the kind
    assert claims.update(two, claiming("two", "web", version="v2")) == {one}
    assert claims.others(one, original()) == {two}
    assert claims.update(two, claiming("two", "web", strategy=WORK_API)) == {one}
    assert claims.others(one, original()) == set()
    assert claims.update(two, claiming("two", "web", clusters=())) == set()
    assert claims.update(one, None) == set()


def test_which_changes_concern_claims() -> None:
    plain = claiming("one", "web")
    assert has_same_claims(plain, claiming("one", "web", clusters=("b",)))
    assert not has_same_claims(plain, claiming("one", "web", "db"))
    assert not has_same_claims(plain, claiming("one", "web", clusters=()))
    assert not has_same_claims(plain, claiming("one", "web", strategy=WORK_API))
    silent = claiming("one", "web", strategy=WORK_API)
    assert has_same_claims(silent, claiming("one", "db", strategy=WORK_API))


PLACEMENTS = ("p", "q", "r")
OBJECTS = ("a", "b", "c")


@given(
    st.lists(
        st.tuples(st.sampled_from(PLACEMENTS), st.none() | st.frozensets(st.sampled_from(OBJECTS))),
        max_size=30,
    )
)
def test_claims_are_those_of_the_last_updates(
    updates: list[tuple[str, frozenset[str] | None]],
) -> None:
    claims, last = Claims(), dict[str, frozenset[str]]()
    for name, objects in updates:
        before = last.get(name, frozenset())
        placement = claiming(name, *sorted(objects)) if objects is not None else None
        concerned = claims.update(Key("", name), placement)
        last[name] = objects or frozenset()
        changed = before ^ last[name]
        assert concerned == {
            Key("", other) for other, held in last.items() if other != name and held & changed
        }
    for name in PLACEMENTS:
        for obj in OBJECTS:
            assert claims.others(Key("", name), original(obj)) == {
                Key("", other) for other, held in last.items() if other != name and obj in held
            }
