"""Decisions on one manifest: each row of the table, and where every path ends."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.conditions import ManifestReason
from kubeocean.api.fleet.names import ANNOTATION_LAST_APPLIED, ANNOTATION_SPEC_HASH
from kubeocean.api.fleet.strategies import (
    ApplyStrategy,
    ApplyStrategyType,
    ComparisonOption,
    ServerSideApplyConfig,
    WhenToApply,
    WhenToTakeOver,
)
from kubeocean.api.group import DEFAULT
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.diff import WHOLE_OBJECT, FieldDifference
from kubeocean.fleet.applier.manifests import Identifier, Manifest, Owner, Rejected, prepared
from kubeocean.fleet.applier.merge_keys import shape_of
from kubeocean.fleet.applier.plan import (
    Adopt,
    Apply,
    Compare,
    Create,
    DryRun,
    Finish,
    Keep,
    ManifestFacts,
    OwnFields,
    PatchObject,
    Result,
    applied,
    check_strategy,
    decide,
    failed,
    is_leasing_copy,
    not_read,
    rejected,
)
from kubeocean.runtime.client import MergePatch, StrategicPatch
from kubeocean.runtime.objects import Json
from support.fleet_manifests import manifests
from support.strategic_merge import merge

OWNER = Owner("work", "ours")
ANOTHER = Owner("another-work", "theirs").reference()
REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}


def body(**data: str) -> Json:
    metadata = {"name": "settings", "namespace": "web"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def facts(live: Json | None, manifest: Json | None = None, **strategy: Any) -> ManifestFacts:
    wanted = body(k="v") if manifest is None else manifest
    group, _, version = wanted["apiVersion"].rpartition("/")
    identifier = Identifier(0, group, version, wanted["kind"], "things", "web", "settings")
    return ManifestFacts(
        Manifest(identifier, wanted),
        live,
        OWNER,
        ApplyStrategy(**strategy),
        hub_works={"work", "another-work"},
    )


def stored(manifest: Json, *owners: Json, **metadata: Any) -> Json:
    """Return an object as the member has it, with these owners."""
    more = {"uid": "u", "resourceVersion": "7", "ownerReferences": list(owners), **metadata}
    return {**manifest, "metadata": {**manifest["metadata"], **more}}


def placed(manifest: Json, *co_owners: Json) -> Json:
    """Return an object as it is after it was placed client-side."""
    written = prepared(manifest, OWNER, remember=True, co_owners=co_owners).body
    server = {"uid": "u", "resourceVersion": "7", "generation": 1}
    return {**written, "metadata": {**written["metadata"], **server}}


def finished(subject: ManifestFacts) -> Result:
    step = decide(subject)
    assert isinstance(step, Finish)
    return step.result


# --- no object


def test_a_missing_object_is_created() -> None:
    step = decide(facts(None))
    assert isinstance(step, Create)
    assert step.body == prepared(body(k="v"), OWNER, remember=True).body
    step = decide(facts(None, type=ApplyStrategyType.SERVER_SIDE_APPLY))
    assert isinstance(step, Create)
    assert ANNOTATION_LAST_APPLIED not in step.body["metadata"]["annotations"]


def test_a_missing_object_differs_as_a_whole() -> None:
    result = finished(facts(None, type=ApplyStrategyType.REPORT_DIFF))
    assert result == Result(ManifestReason.FOUND_DIFF, diffs=(WHOLE_OBJECT,))


# --- ReportDiff


DIFFERENT = stored(body(k="other"))


@pytest.mark.parametrize(
    ("dry_run", "reason", "diffs"),
    [
        (
            DryRun(stored(body(k="v"))),
            ManifestReason.FOUND_DIFF,
            (FieldDifference("/data/k", "other", "v"),),
        ),
        (DryRun(DIFFERENT), ManifestReason.NO_DIFF_FOUND, ()),
        (
            DryRun(invalid=True),
            ManifestReason.FOUND_DIFF_DEGRADED,
            (FieldDifference("/data/k", "other", "v"),),
        ),
        (DryRun(error="timed out"), ManifestReason.FAILED_TO_REPORT_DIFF, ()),
    ],
)
@pytest.mark.parametrize("take_over", WhenToTakeOver)
def test_differences_are_reported_for_every_owner_of_the_object(
    dry_run: DryRun,
    reason: ManifestReason,
    diffs: tuple[FieldDifference, ...],
    take_over: WhenToTakeOver,
) -> None:
    live = stored(body(k="other"), ANOTHER, REPLICA_SET)
    subject = facts(live, type=ApplyStrategyType.REPORT_DIFF, when_to_take_over=take_over)
    step = decide(subject)
    assert isinstance(step, Compare)
    assert step.patch.force
    assert step.patch.body == body(k="v")
    result = finished(replace(subject, dry_run=dry_run))
    assert (result.reason, result.diffs, result.error) == (reason, diffs, dry_run.error)


def test_a_full_comparison_needs_no_dry_run() -> None:
    live = stored({**body(k="v"), "immutable": True})
    full = {"type": ApplyStrategyType.REPORT_DIFF, "comparison_option": ComparisonOption.FULL}
    result = finished(facts(live, **full))
    assert result.reason is ManifestReason.FOUND_DIFF
    assert result.diffs == (FieldDifference("/immutable", "true"),)
    assert finished(facts(stored(body(k="v")), **full)).reason is ManifestReason.NO_DIFF_FOUND


# --- take-over


def test_an_object_is_taken_over_and_changed_by_one_patch() -> None:
    step = decide(facts(stored(body(k="other", foreign="x"))))
    assert isinstance(step, PatchObject)
    assert isinstance(step.patch, StrategicPatch)
    metadata = step.patch.body["metadata"]
    assert metadata["ownerReferences"] == [OWNER.reference()]
    assert metadata["resourceVersion"] == "7"
    assert metadata["annotations"].keys() == {ANNOTATION_SPEC_HASH, ANNOTATION_LAST_APPLIED}
    assert step.patch.body["data"] == {"k": "v"}


def test_never_leaves_an_object_alone() -> None:
    never = {"when_to_take_over": WhenToTakeOver.NEVER}
    for owners in ([], [ANOTHER], [REPLICA_SET]):
        result = finished(facts(stored(body(k="v"), *owners), **never))
        assert (result.reason, result.diffs) == (ManifestReason.NOT_TAKEN_OVER, ())
    assert isinstance(decide(facts(placed(body(k="old")), **never)), PatchObject)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("take_over", [WhenToTakeOver.ALWAYS, WhenToTakeOver.IF_NO_DIFF])
def test_an_object_of_another_work_is_not_taken_over(
    allowed: bool, take_over: WhenToTakeOver
) -> None:
    strategy = {"allow_co_ownership": allowed, "when_to_take_over": take_over}
    result = finished(facts(stored(body(k="v"), ANOTHER), **strategy))
    assert (result.reason, result.diffs) == (ManifestReason.FAILED_TO_TAKE_OVER, ())
    both = stored(body(k="v"), ANOTHER, OWNER.reference())
    assert finished(facts(both, **strategy)).reason is ManifestReason.APPLY_FAILED


def test_other_owners_need_co_ownership() -> None:
    live = stored(body(k="v"), REPLICA_SET)
    result = finished(facts(live))
    assert (result.reason, result.diffs) == (ManifestReason.FAILED_TO_TAKE_OVER, ())
    assert "ReplicaSet rs" in result.error
    step = decide(facts(live, allow_co_ownership=True))
    assert isinstance(step, PatchObject)
    merged = merge(live, dict(step.patch.body), shape("v1", "ConfigMap"))
    assert merged["metadata"]["ownerReferences"] == [REPLICA_SET, OWNER.reference()]
    owned = placed(body(k="v"), REPLICA_SET)
    assert finished(facts(owned)).reason is ManifestReason.APPLY_FAILED
    assert isinstance(decide(facts(owned, allow_co_ownership=True)), Keep)


@pytest.mark.parametrize(
    "stale", [Owner("gone-work", "x").reference(), Owner("work", "made-anew").reference()]
)
def test_stale_references_are_no_owners_and_are_removed(stale: Json) -> None:
    for live in (stored(body(k="v"), stale), stored(body(k="v"), stale, OWNER.reference())):
        step = decide(facts(live))
        assert isinstance(step, PatchObject)
        merged = merge(live, dict(step.patch.body), shape("v1", "ConfigMap"))
        assert merged["metadata"]["ownerReferences"] == [OWNER.reference()]
        step = decide(facts(live, type=ApplyStrategyType.SERVER_SIDE_APPLY))
        references = {"ownerReferences": [OWNER.reference()], "resourceVersion": "7"}
        assert step == Adopt(MergePatch({"metadata": references}))
    adopted = stored(body(k="v"), OWNER.reference())
    assert isinstance(decide(facts(adopted, type=ApplyStrategyType.SERVER_SIDE_APPLY)), Apply)
    never = facts(stored(body(k="v"), stale), when_to_take_over=WhenToTakeOver.NEVER)
    assert finished(never).reason is ManifestReason.NOT_TAKEN_OVER


def test_if_no_diff_takes_over_what_is_the_same() -> None:
    strategy = {"when_to_take_over": WhenToTakeOver.IF_NO_DIFF}
    subject = facts(stored(body(k="other", foreign="x")), **strategy)
    assert isinstance(decide(subject), Compare)
    would_be = DryRun(body(k="v", foreign="x"))
    result = finished(replace(subject, dry_run=would_be))
    assert result.reason is ManifestReason.FAILED_TO_TAKE_OVER
    assert result.diffs == (FieldDifference("/data/k", "other", "v"),)
    for problem in (DryRun(invalid=True), DryRun(error="timed out")):
        result = finished(replace(subject, dry_run=problem))
        assert result.reason is ManifestReason.FAILED_TO_TAKE_OVER
        assert bool(result.diffs) == problem.invalid
    same = facts(stored(body(k="v", foreign="x")), **strategy)
    assert isinstance(decide(replace(same, dry_run=would_be)), PatchObject)
    full = facts(same.live, comparison_option=ComparisonOption.FULL, **strategy)
    assert finished(full).diffs == (FieldDifference("/data/foreign", "x"),)


def test_copies_of_leasing_are_never_taken_over() -> None:
    labels = {DEFAULT.managed_by: DEFAULT.product}
    live = stored(body(k="v"), OWNER.reference(), labels=labels)
    assert is_leasing_copy(live, DEFAULT)
    assert not is_leasing_copy(stored(body(k="v")), DEFAULT)
    result = finished(replace(facts(live), copied_by_leasing=True))
    assert result.reason is ManifestReason.FAILED_TO_TAKE_OVER


# --- drift


IF_NOT_DRIFTED = {"when_to_apply": WhenToApply.IF_NOT_DRIFTED}


def drifted(**data: str) -> Json:
    return {**placed(body(k="v")), "data": data}


def test_a_drifted_object_is_not_applied() -> None:
    subject = facts(drifted(k="drifted"), **IF_NOT_DRIFTED)
    assert isinstance(decide(subject), Compare)
    result = finished(replace(subject, dry_run=DryRun(body(k="v"))))
    assert (result.reason, result.diffs) == (ManifestReason.FOUND_DRIFTS, ())
    assert result.drifts == (FieldDifference("/data/k", "drifted", "v"),)
    result = finished(replace(subject, dry_run=DryRun(invalid=True)))
    assert result.reason is ManifestReason.FOUND_DRIFTS_DEGRADED
    assert result.drifts
    result = finished(replace(subject, dry_run=DryRun(error="timed out")))
    assert result.reason is ManifestReason.FAILED_TO_RUN_DRIFT_DETECTION
    full = facts(
        drifted(k="v", more="x"), comparison_option=ComparisonOption.FULL, **IF_NOT_DRIFTED
    )
    assert finished(full).drifts == (FieldDifference("/data/more", "x"),)


def test_an_object_that_has_not_drifted_is_applied_with_its_version() -> None:
    live = drifted(k="v", foreign="x")
    subject = facts(live, **IF_NOT_DRIFTED)
    assert isinstance(decide(replace(subject, dry_run=DryRun(live))), Keep)
    server_side = facts(live, type=ApplyStrategyType.SERVER_SIDE_APPLY, **IF_NOT_DRIFTED)
    step = decide(replace(server_side, dry_run=DryRun(live)))
    assert isinstance(step, Apply)
    assert step.patch.body["metadata"]["resourceVersion"] == "7"


def test_a_changed_manifest_is_let_through() -> None:
    subject = facts(drifted(k="drifted"), body(k="changed"), **IF_NOT_DRIFTED)
    assert isinstance(decide(subject), PatchObject)


def test_always_overwrites_drifts_and_keeps_what_others_added() -> None:
    step = decide(facts(drifted(k="drifted", foreign="x")))
    assert isinstance(step, PatchObject)
    assert step.patch.body == {"data": {"k": "v"}, "metadata": {"resourceVersion": "7"}}
    assert decide(facts(drifted(k="v", foreign="x"))) == Keep()


def test_a_full_comparison_after_the_apply_reports_what_others_added() -> None:
    returned = drifted(k="v", foreign="x")
    assert applied(facts(returned), returned) == Result(ManifestReason.APPLIED, live=returned)
    result = applied(facts(returned, comparison_option=ComparisonOption.FULL), returned)
    assert (result.reason, result.drifts) == (
        ManifestReason.APPLIED,
        (FieldDifference("/data/foreign", "x"),),
    )


# --- apply


def widget(**metadata: Any) -> Json:
    full = {"name": "settings", "namespace": "web", **metadata}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": full, "spec": {"a": 1}}


def test_other_kinds_get_a_json_merge_patch_that_keeps_foreign_finalizers() -> None:
    manifest = widget(finalizers=["example.com/hub"])
    live = placed(manifest)
    live["metadata"]["finalizers"] = ["example.com/member"]
    step = decide(facts(live, manifest))
    assert isinstance(step, PatchObject)
    assert isinstance(step.patch, MergePatch)
    assert step.patch.body["metadata"]["finalizers"] == ["example.com/hub", "example.com/member"]
    live["metadata"]["finalizers"] = ["example.com/hub", "example.com/member"]
    assert decide(facts(live, manifest)) == Keep()
    del manifest["metadata"]["finalizers"]
    step = decide(facts(live, manifest))
    assert isinstance(step, PatchObject)
    assert step.patch.body["metadata"]["finalizers"] is None


def test_a_hostile_memory_does_no_harm() -> None:
    manifest = widget(finalizers=["example.com/hub"])
    for memory in ('{"metadata": 1}', '{"metadata": {"finalizers": 3}}', '{"metadata": []}'):
        live = placed(manifest)
        live["metadata"]["annotations"][ANNOTATION_LAST_APPLIED] = memory
        step = decide(facts(live, manifest))
        assert isinstance(step, PatchObject)
        assert step.patch.body["metadata"].keys() == {"annotations", "resourceVersion"}


@pytest.mark.parametrize(
    ("managers", "configured", "force"),
    [
        ([], False, True),
        (["work-api-agent", "before-first-apply"], False, True),
        (["work-api-agent", "kubectl"], False, False),
        (["work-api-agent", "kubectl"], True, True),
    ],
)
def test_a_server_side_apply_is_forced_if_configured_or_if_we_manage_alone(
    managers: list[str], configured: bool, force: bool
) -> None:
    fields = [{"manager": manager, "operation": "Apply"} for manager in managers]
    live = stored(body(k="v"), OWNER.reference(), managedFields=fields)
    step = decide(
        facts(
            live,
            type=ApplyStrategyType.SERVER_SIDE_APPLY,
            server_side_apply_config=ServerSideApplyConfig(configured),
        )
    )
    assert isinstance(step, Apply)
    assert step.patch.force is force
    metadata = step.patch.body["metadata"]
    assert metadata["ownerReferences"] == [OWNER.reference()]
    assert "resourceVersion" not in metadata


def test_fields_that_were_not_applied_server_side_get_the_applier_as_their_manager_first() -> None:
    other = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:x": {}}}}
    own = {"manager": "work-api-agent", "operation": "Update", "apiVersion": "v1"}
    managed = [{**own, "fieldsV1": {"f:data": {"f:k": {}, "f:gone": {}}}}, other]
    live = stored(body(k="v", gone="x"), OWNER.reference(), managedFields=managed)
    step = decide(facts(live, body(k="v"), type=ApplyStrategyType.SERVER_SIDE_APPLY))
    assert isinstance(step, OwnFields)
    metadata = step.patch.body["metadata"]
    assert metadata["resourceVersion"] == live["metadata"]["resourceVersion"]
    [theirs, ours] = metadata["managedFields"]
    assert theirs == other
    assert ours == {**managed[0], "operation": "Apply"}
    live["metadata"]["managedFields"] = [theirs, ours]
    again = decide(facts(live, body(k="v"), type=ApplyStrategyType.SERVER_SIDE_APPLY))
    assert isinstance(again, Apply)
    assert not again.patch.force
    # Client-side apply has no last manifest to compare with, and overwrites fields of others
    back = decide(facts(live, body(k="v")))
    assert isinstance(back, Apply)
    assert back.patch.force
    assert back.patch.body["metadata"]["annotations"][ANNOTATION_LAST_APPLIED]


def test_a_manifest_too_large_to_remember_is_applied_server_side_without_force() -> None:
    large = body(k="x" * 300_000)
    created = decide(facts(None, large))
    assert isinstance(created, Create)
    assert created.body["metadata"]["annotations"][ANNOTATION_LAST_APPLIED] == ""
    live = stored(created.body, OWNER.reference(), managedFields=[{"manager": "kubectl"}])
    step = decide(facts(live, large, server_side_apply_config=ServerSideApplyConfig(force=True)))
    assert isinstance(step, Apply)
    assert not step.patch.force
    small = decide(facts(live, body(k="v")))
    assert isinstance(small, PatchObject), "a small manifest is applied client-side again"
    assert small.patch.body["metadata"]["annotations"][ANNOTATION_LAST_APPLIED] != ""


# --- results and strategies


def test_results_of_steps_that_failed() -> None:
    live = placed(body(k="v"))
    subject = facts(live)
    refused = failed(subject, Keep(), "field is immutable")
    assert refused == Result(ManifestReason.APPLY_FAILED, "field is immutable", live)
    adopting = failed(subject, Adopt(MergePatch({})), "conflict")
    assert adopting.reason is ManifestReason.FAILED_TO_TAKE_OVER
    assert not_read("timed out").reason is ManifestReason.FAILED_TO_FIND_OBJECT
    assert (
        rejected(Rejected(Identifier(0), ManifestReason.DUPLICATED, "x")).reason
        is ManifestReason.DUPLICATED
    )


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("type", ApplyStrategyType),
        ("comparison_option", ComparisonOption),
        ("when_to_apply", WhenToApply),
        ("when_to_take_over", WhenToTakeOver),
    ],
)
def test_a_strategy_of_a_newer_api_is_refused(field: str, options: type[StrEnum]) -> None:
    for option in options:
        check_strategy(ApplyStrategy(**{field: option.value}))
    with pytest.raises(ConfigError, match=f"must be one of {next(iter(options))}"):
        check_strategy(ApplyStrategy(**{field: "Teleport"}))


def shape(api_version: str, kind: str) -> Any:
    return shape_of(api_version, kind)


STRATEGIES = st.builds(
    ApplyStrategy,
    st.sampled_from(ApplyStrategyType),
    st.sampled_from(ComparisonOption),
    st.sampled_from(WhenToApply),
    st.sampled_from(WhenToTakeOver),
    st.booleans(),
    st.none() | st.builds(ServerSideApplyConfig, st.booleans()),
)
OWNERS = st.lists(
    st.sampled_from((OWNER.reference(), ANOTHER, REPLICA_SET, Owner("gone-work", "x").reference())),
    unique_by=lambda each: each["uid"],
)


@given(manifests(), STRATEGIES, OWNERS)
def test_every_path_ends_and_only_writes_what_it_may(
    case: tuple[Json, Json, Json], strategy: ApplyStrategy, owners: list[Json]
) -> None:
    _, desired, other = case
    live = stored(other, *owners)
    subject = replace(facts(live, desired), strategy=strategy)
    step = decide(subject)
    if isinstance(step, Compare):
        step = decide(replace(subject, dry_run=DryRun(live)))
    if isinstance(step, Adopt):
        references = step.patch.body["metadata"]["ownerReferences"]
        step = decide(replace(subject, live=stored(other, *references), dry_run=DryRun(live)))
        assert not isinstance(step, Adopt)
    assert not isinstance(step, Compare | Create)
    writes = isinstance(step, PatchObject | Apply)
    if strategy.type is ApplyStrategyType.REPORT_DIFF or ANOTHER in owners:
        assert not writes
    if REPLICA_SET in owners and not strategy.allow_co_ownership:
        assert not writes
    if OWNER.reference() not in owners and strategy.when_to_take_over is WhenToTakeOver.NEVER:
        assert not writes
    if isinstance(step, PatchObject):
        after = merge(live, dict(step.patch.body), shape(live["apiVersion"], live["kind"]))
        second = decide(replace(subject, live=after, dry_run=DryRun(after)))
        if isinstance(second, Finish):  # others added fields, which only a full comparison detects
            assert second.result.reason is ManifestReason.FOUND_DRIFTS
            assert strategy.comparison_option is ComparisonOption.FULL
            assert strategy.when_to_apply is WhenToApply.IF_NOT_DRIFTED
        else:
            assert second == Keep()
