"""Apply strategies: drift, take-over, co-ownership, comparison, server-side apply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kubeocean.api.fleet.names import ANNOTATION_LAST_APPLIED
from kubeocean.runtime.client import ApplyPatch
from kubeocean.runtime.kinds import CONFIG_MAPS, SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.applier_env import EVENTS_ONLY, ApplierEnv
from support.wait import until

IF_NOT_DRIFTED = {"whenToApply": "IfNotDrifted"}
SERVER_SIDE = {"type": "ServerSideApply"}
FORCED = {**SERVER_SIDE, "serverSideApplyConfig": {"force": True}}
REPORT_DIFF = {"type": "ReportDiff"}
FULL = {"comparisonOption": "FullComparison"}


async def has_data(env: ApplierEnv, data: Json, name: str = "settings") -> None:
    async def matches() -> bool:
        placed = await env.placed(name)
        assert placed and placed.get("data") == data
        return True

    await until(matches, waiting_for=f"data {data}")


# --- drift


@pytest.mark.parametrize("strategy", [{}, SERVER_SIDE], ids=["client-side", "server-side"])
async def test_drift_is_corrected_when_it_happens(env: ApplierEnv, strategy: Json) -> None:
    async with env.running(backoff=EVENTS_ONLY) as run:
        await env.put_work(env.config_map(k="v"), strategy=strategy)
        await env.until_available()
        if not strategy:  # a forced edit would take over server-side fields
            await env.edit({"data": {"k": "drifted", "extra": "kept"}})
            await has_data(env, {"k": "v", "extra": "kept"})
        placed = await env.placed()
        assert placed
        await env.member.delete(
            CONFIG_MAPS, "settings", env.namespace, uid=placed["metadata"]["uid"]
        )
        await has_data(env, {"k": "v"})
        await run.is_quiet()


async def test_drift_is_reported_and_not_corrected_if_the_work_says_so(env: ApplierEnv) -> None:
    async with env.running(backoff=EVENTS_ONLY):
        await env.put_work(env.config_map(k="v"), strategy=IF_NOT_DRIFTED)
        await env.until_available()
        await env.edit({"data": {"k": "drifted", "extra": "x"}})
        [entry] = await env.until_reasons("FoundDrifts")
        details = entry["driftDetails"]
        assert details["observedDrifts"] == [
            {"path": "/data/k", "valueInMember": "drifted", "valueInHub": "v"}
        ]
        assert details["observedInMemberClusterGeneration"] == 0
        assert (await env.conditions())["Applied"] == ("False", "SomeManifestsAreNotApplied")
        first = details["firstDriftedObservedTime"]
        await asyncio.sleep(1.1)  # times are in whole seconds
        await env.edit({"data": {"k": "again"}})

        async def seen_again() -> bool:
            [entry] = await env.entries()
            details = entry["driftDetails"]
            assert details["observedDrifts"][0]["valueInMember"] == "again"
            assert details["observationTime"] > first
            assert details["firstDriftedObservedTime"] == first
            return True

        await until(seen_again)
        # A changed manifest is let through
        await env.put_work(env.config_map(k="new"), strategy=IF_NOT_DRIFTED)
        [entry] = await env.until_reasons("Applied")
        await has_data(env, {"k": "new", "extra": "x"})
        assert "driftDetails" not in entry
        # An edit that restores the manifest ends a drift
        await env.edit({"data": {"k": "drifted"}})
        await env.until_reasons("FoundDrifts")
        await env.edit({"data": {"k": "new"}})
        await env.until_reasons("Applied")


async def test_full_comparison_reports_what_others_added(env: ApplierEnv) -> None:
    async with env.running(backoff=EVENTS_ONLY):
        await env.put_work(env.config_map(k="v"), strategy=FULL)
        await env.until_available()
        await env.edit({"data": {"extra": "x"}})

        async def reported() -> bool:
            [entry] = await env.entries()
            assert entry["conditions"][0]["reason"] == "Applied"
            assert entry.get("driftDetails", {}).get("observedDrifts") == [
                {"path": "/data/extra", "valueInMember": "x"}
            ]
            return True

        await until(reported)
        await env.put_work(env.config_map(k="v"), strategy={**FULL, **IF_NOT_DRIFTED})
        await env.until_reasons("FoundDrifts")


# --- take-over


async def make(env: ApplierEnv, name: str = "settings", owners: Any = (), **data: str) -> None:
    body = env.config_map(name, **data)
    body["metadata"]["ownerReferences"] = list(owners)
    await env.member.create(CONFIG_MAPS, body)


@pytest.mark.parametrize("strategy", [{}, SERVER_SIDE], ids=["client-side", "server-side"])
async def test_an_object_that_exists_is_taken_over(env: ApplierEnv, strategy: Json) -> None:
    await make(env, k="old", extra="x")
    async with env.running() as run:
        await env.put_work(
            env.config_map(k="v"), strategy={**strategy, **({} if not strategy else FORCED)}
        )
        await env.until_available()
        await has_data(env, {"k": "v", "extra": "x"})
        owner, placed = await env.applied_work(), await env.placed()
        assert owner and placed
        [reference] = placed["metadata"]["ownerReferences"]
        assert reference["uid"] == owner["metadata"]["uid"]
        await run.is_quiet()


async def test_an_object_is_taken_over_if_it_does_not_differ(env: ApplierEnv) -> None:
    await make(env, k="old", extra="x")
    async with env.running(backoff=EVENTS_ONLY):
        await env.put_work(env.config_map(k="v"), strategy={"whenToTakeOver": "IfNoDiff"})
        [entry] = await env.until_reasons("FailedToTakeOver")
        assert entry["diffDetails"]["observedDiffs"] == [
            {"path": "/data/k", "valueInMember": "old", "valueInHub": "v"}
        ]
        placed = await env.placed()
        assert placed
        assert "ownerReferences" not in placed["metadata"]
        await env.edit({"data": {"k": "v"}})
        [entry] = await env.until_reasons("Applied")
        assert "diffDetails" not in entry


async def test_an_object_is_not_taken_over_if_the_work_says_so(env: ApplierEnv) -> None:
    await make(env, k="old")
    async with env.running(backoff=EVENTS_ONLY) as run:
        strategy = {"whenToTakeOver": "Never"}
        await env.put_work(env.config_map(k="v"), env.config_map("new"), strategy=strategy)
        entries = await env.until_reasons("NotTakenOver", "Applied")
        assert "diffDetails" not in entries[0]
        await has_data(env, {"k": "old"})
        await run.is_quiet()
        # The object is not ours, so it stays when the Work is deleted
        await env.delete_work()
        await env.until_gone(env.work)
        assert await env.placed()
        assert await env.placed("new") is None


async def test_an_object_of_another_work_is_left_alone(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="first"), name="first")
        await env.until_available("first")
        strategy = {"allowCoOwnership": True}
        await env.put_work(env.config_map(k="second"), name="second", strategy=strategy)
        [entry] = await env.until_reasons("FailedToTakeOver", name="second")
        assert "diffDetails" not in entry
        await has_data(env, {"k": "first"})
        await run.is_quiet()
        await env.delete_work("first")
        await env.until_reasons("Applied", name="second")
        await has_data(env, {"k": "second"})


async def test_other_owners_are_accepted_only_if_the_work_says_so(env: ApplierEnv) -> None:
    other = await env.another_owner()
    await make(env, owners=[other], k="old")
    async with env.running():
        await env.put_work(env.config_map(k="v"))
        await env.until_reasons("FailedToTakeOver")
        await env.put_work(env.config_map(k="v"), strategy={"allowCoOwnership": True})
        await env.until_reasons("Applied")
        placed = await env.placed()
        assert placed
        kinds = {each["kind"] for each in placed["metadata"]["ownerReferences"]}
        assert kinds == {"Namespace", "AppliedWork"}


# --- comparing without writing


async def test_differences_are_reported_without_a_write(env: ApplierEnv) -> None:
    await make(env, k="old")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "password", "namespace": env.namespace},
        "data": {"p": "b2xk"},
    }
    await env.member.create(SECRETS, secret)
    manifests = [
        env.config_map(k="v"),
        env.config_map("missing"),
        {**secret, "data": {"p": "bmV3"}},
        env.config_map("same"),
    ]
    await make(env, "same")
    async with env.running(backoff=EVENTS_ONLY) as run:
        await env.put_work(*manifests, strategy=REPORT_DIFF)
        entries = await env.until_reasons("FoundDiff", "FoundDiff", "FoundDiff", "NoDiffFound")
        diffs = [each.get("diffDetails", {}).get("observedDiffs") for each in entries]
        hidden = "(redacted for security reasons)"
        assert diffs == [
            [{"path": "/data/k", "valueInMember": "old", "valueInHub": "v"}],
            [{"path": "/", "valueInHub": "(the whole object)"}],
            [{"path": "/data/p", "valueInMember": hidden, "valueInHub": hidden}],
            None,
        ]
        assert "observedInMemberClusterGeneration" not in entries[1]["diffDetails"]
        assert entries[0]["diffDetails"]["observedInMemberClusterGeneration"] == 0
        assert await env.conditions() == {"DiffReported": ("True", "AllManifestsDiffReported")}
        placed = await env.placed()
        assert placed
        assert placed["data"] == {"k": "old"}
        assert "annotations" not in placed["metadata"]
        owned = [write for write in run.writes() if env.namespace in write]
        assert owned == []
        # Changes in the member are noticed: changed, created and deleted objects
        await env.edit({"data": {"k": "v"}})
        await make(env, "missing")
        await env.member.delete(CONFIG_MAPS, "same", env.namespace, uid=None)
        await env.until_reasons("NoDiffFound", "NoDiffFound", "FoundDiff", "FoundDiff")
        # Back to applying
        await env.put_work(*manifests)
        await env.until_reasons(*["Applied"] * 4)


async def test_what_was_applied_stays_while_differences_are_reported(env: ApplierEnv) -> None:
    async with env.running():
        await env.put_work(env.config_map("a"), env.config_map("b", k="v"))
        await env.until_available()
        await env.put_work(env.config_map("b", k="new"), strategy=REPORT_DIFF)
        await env.until_reasons("FoundDiff")
        assert await env.placed("a")
        await has_data(env, {"k": "v"}, "b")
        await env.put_work(env.config_map("b", k="new"))
        await env.until_gone(lambda: env.placed("a"))
        await has_data(env, {"k": "new"}, "b")


# --- server-side apply


async def test_conflicts_of_server_side_apply_are_reported_or_forced(env: ApplierEnv) -> None:
    other = env.member.with_field_manager("somebody")
    body = env.config_map(k="theirs")
    await other.patch(CONFIG_MAPS, "settings", ApplyPatch(body), env.namespace)
    async with env.running() as run:
        await env.put_work(env.config_map(k="ours"), strategy=SERVER_SIDE)
        [entry] = await env.until_reasons("ManifestApplyFailed")
        assert "somebody" in entry["conditions"][0]["message"]
        await has_data(env, {"k": "theirs"})
        await env.put_work(env.config_map(k="ours"), strategy=FORCED)
        await env.until_reasons("Applied")
        await has_data(env, {"k": "ours"})
        placed = await env.placed()
        assert placed
        assert ANNOTATION_LAST_APPLIED not in placed["metadata"]["annotations"]
        await run.is_quiet()


async def test_a_client_side_object_becomes_a_server_side_one_and_back(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="1", gone="x"))
        await env.until_available()
        await env.put_work(env.config_map(k="2"), strategy=SERVER_SIDE)
        await env.until_reasons("Applied")

        async def applied() -> bool:
            placed = await env.placed()
            assert placed and placed["data"]["k"] == "2"
            return True

        await until(applied)
        await env.put_work(env.config_map(k="3"))
        await env.until_reasons("Applied")

        async def client_side() -> bool:
            placed = await env.placed()
            assert placed and placed["data"]["k"] == "3"
            assert placed["metadata"]["annotations"][ANNOTATION_LAST_APPLIED]
            return True

        await until(client_side)
        await run.is_quiet()


async def test_a_manifest_too_large_for_its_annotation_is_applied_server_side(
    env: ApplierEnv,
) -> None:
    async with env.running() as run:
        for size in (100, 270_000, 263_000, 100):
            await env.put_work(env.config_map(k="x" * size))

            async def applied(size: int = size) -> bool:
                assert await env.manifest_reasons() == ["Applied"]
                placed = await env.placed()
                assert placed and len(placed["data"]["k"]) == size
                memory = placed["metadata"]["annotations"][ANNOTATION_LAST_APPLIED]
                assert bool(memory) == (size == 100)
                return True

            await until(applied)
        await run.is_quiet()


async def test_a_field_that_a_server_side_manifest_no_longer_has_is_removed(
    env: ApplierEnv,
) -> None:
    """The object was created by a POST, after which the server lists no field as applied."""
    async with env.running() as run:
        await env.put_work(env.config_map(k="1", gone="x"), strategy=SERVER_SIDE)
        await env.until_available()
        await env.edit({"data": {"extra": "kept"}})
        await env.put_work(env.config_map(k="2"), strategy=SERVER_SIDE)
        await has_data(env, {"k": "2", "extra": "kept"})
        await env.until_available()
        await env.put_work(env.config_map(other="3"), strategy=SERVER_SIDE)
        await has_data(env, {"other": "3", "extra": "kept"})
        await run.is_quiet()


@pytest.mark.parametrize("order", [({}, SERVER_SIDE), (SERVER_SIDE, {})], ids=["to", "from"])
async def test_a_field_is_removed_together_with_a_change_of_the_strategy(
    env: ApplierEnv, order: tuple[Json, Json]
) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="1"), strategy=order[0])
        await env.until_available()
        await env.put_work(env.config_map(k="1", gone="x"), strategy=order[0])
        await has_data(env, {"k": "1", "gone": "x"})
        await env.edit({"data": {"extra": "kept"}})
        await env.put_work(env.config_map(k="2"), strategy=order[1])
        await has_data(env, {"k": "2", "extra": "kept"})
        await run.is_quiet()


async def test_an_apply_after_a_creation_changes_no_field_that_the_server_has_set(
    env: ApplierEnv,
) -> None:
    """The first apply makes the fields that the creation set those of an apply, defaults too.

    Otherwise the apply would be in conflict with the applier's own creation, where the server has
    rewritten a value (a quantity) and a controller manages fields as well.
    """
    labels, meta = {"app": "web"}, {"name": "web", "namespace": env.namespace}
    resources = {"requests": {"cpu": "1000m", "memory": "1024Mi"}}
    container = {"name": "c", "image": "app:1", "resources": resources}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1024Mi"}},
        "storageClassName": "none",
    }
    common = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    ports = [{"port": 80, "name": "http"}, {"port": 53, "protocol": "UDP", "name": "dns"}]
    rule = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend("web")}]}}
    specs: dict[tuple[str, str], Json] = {
        ("apps/v1", "Deployment"): common,
        ("apps/v1", "StatefulSet"): {
            **common,
            "serviceName": "web",
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
        ("batch/v1", "Job"): {
            "suspend": True,
            "template": {"spec": {**template["spec"], "restartPolicy": "Never"}},
        },
        ("v1", "Service"): {"selector": labels, "ports": ports, "type": "NodePort"},
        ("v1", "PersistentVolumeClaim"): claim,
        ("networking.k8s.io/v1", "Ingress"): {"rules": [rule]},
        ("networking.k8s.io/v1", "NetworkPolicy"): {"podSelector": {}, "egress": [{}]},
        ("policy/v1", "PodDisruptionBudget"): {"minAvailable": 1},
    }
    manifests = [
        {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
        for (version, kind), spec in specs.items()
    ]
    async with env.running() as run:
        await env.put_work(*manifests, strategy=SERVER_SIDE)
        before = await env.until_reasons(*["Applied"] * len(manifests))
        placed = await specs_of(env, before)
        labelled = {"metadata": {**meta, "labels": {"new": "label"}}}
        await env.put_work(*({**each, **labelled} for each in manifests), strategy=SERVER_SIDE)

        async def all_labelled() -> bool:
            after = await specs_of(env, before)
            without = [kind for kind, (labels, _, _) in after.items() if "new" not in labels]
            assert not without, (without, await env.manifest_reasons())
            return True

        await until(all_labelled, within=20)
        await env.until_reasons(*["Applied"] * len(manifests))
        after = await specs_of(env, before)
        for kind, (_, generation, spec) in after.items():
            assert (kind, spec) == (kind, placed[kind][2])
            # Of a Deployment the server counts changes of annotations as well.
            assert (kind, generation) == (kind, placed[kind][1] + (kind == "Deployment"))
        await run.is_quiet()


def backend(service: str) -> Json:
    return {"service": {"name": service, "port": {"number": 80}}}


async def specs_of(env: ApplierEnv, entries: list[Json]) -> dict[str, tuple[Json, int, Json]]:
    """Return labels, generation and spec of the placed objects, by kind."""
    objects: dict[str, tuple[Json, int, Json]] = {}
    for entry in entries:
        name = entry["identifier"]
        group, version, kind = name.get("group", ""), name["version"], name["kind"]
        resource = Resource(group, version, name["resource"], kind, True, Untyped)
        placed = await env.placed(name["name"], resource)
        assert placed is not None, name
        metadata = placed["metadata"]
        objects[kind] = (
            metadata.get("labels") or {},
            metadata.get("generation", 0),
            placed["spec"],
        )
    return objects
