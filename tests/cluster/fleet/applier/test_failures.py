"""Manifests that cannot be placed: each fails alone, with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubeocean.errors import ApiError
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.applier_env import ApplierEnv
from support.background import running
from support.wait import until

FLEET = "placement.kubernetes-fleet.io"
RBAC = "rbac.authorization.k8s.io"
QUOTAS: Resource[Untyped] = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
ACCOUNTS: Resource[Untyped] = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Untyped)
ROLES: Resource[Untyped] = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
ROLE_BINDINGS: Resource[Untyped] = Resource(
    RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped
)


async def test_manifests_that_cannot_be_placed_are_refused_one_by_one(env: ApplierEnv) -> None:
    generated = env.config_map()
    generated["metadata"] = {"generateName": "settings-", "namespace": env.namespace}
    unknown = {**env.config_map("strange"), "kind": "Strange"}
    missing = env.config_map("far")
    missing["metadata"]["namespace"] = f"missing-{env.id}"
    nowhere = env.config_map("nowhere")
    del nowhere["metadata"]["namespace"]
    invalid = {**env.config_map("invalid"), "data": {"k": 7}}
    good = env.config_map("good")
    async with env.running() as run:
        manifests = [generated, unknown, missing, nowhere, good, good, invalid]
        await env.put_work(*manifests)
        entries = await env.until_reasons(
            "FoundGenerateName",
            "DecodingErred",
            "ManifestApplyFailed",
            "ManifestApplyFailed",
            "Applied",
            "Duplicated",
            "ManifestApplyFailed",
        )
        assert [each["identifier"]["ordinal"] for each in entries] == list(range(7))
        assert "name" not in entries[0]["identifier"]
        for entry in entries:
            [first, *rest] = entry["conditions"]
            assert first["observedGeneration"] == 0
            assert bool(rest) == (first["reason"] == "Applied")
            if not rest:
                assert first["message"].startswith("Failed to apply the manifest (error: ")
        assert await env.conditions() == {"Applied": ("False", "SomeManifestsAreNotApplied")}
        await run.is_quiet(retries=True)
        await env.put_work(good)
        await env.until_available()


async def test_a_change_that_the_server_refuses_is_reported_and_undone(env: ApplierEnv) -> None:
    fixed = {**env.config_map(k="one"), "immutable": True}
    async with env.running() as run:
        await env.put_work(fixed)
        await env.until_available()
        await env.put_work({**fixed, "data": {"k": "two"}}, env.config_map("other"))
        entries = await env.until_reasons("ManifestApplyFailed", "Applied")
        assert "field is immutable" in entries[0]["conditions"][0]["message"]
        await run.is_quiet(retries=True)
        # Its object is ours all the same, and is deleted with the manifest
        await env.put_work(env.config_map("other"))
        await env.until_gone(env.placed)
        await env.until_available()


async def test_an_exceeded_quota_is_reported_until_there_is_room(env: ApplierEnv) -> None:
    quota = {"metadata": {"name": "limit"}, "spec": {"hard": {"count/secrets": "0"}}}
    await env.member.create(QUOTAS, quota, namespace=env.namespace)

    async def is_enforced() -> bool:
        stored = await env.placed("limit", QUOTAS)
        return bool(stored and (stored.get("status") or {}).get("used"))

    await until(is_enforced)
    async with env.running() as run:
        await env.put_work(secret(env), env.config_map())
        entries = await env.until_reasons("ManifestApplyFailed", "Applied")
        assert "exceeded quota: limit" in entries[0]["conditions"][0]["message"]
        assert await env.conditions() == {"Applied": ("False", "SomeManifestsAreNotApplied")}
        await run.is_quiet(retries=True)
        await env.edit({"spec": {"hard": {"count/secrets": "1"}}}, "limit", QUOTAS)
        await env.until_available()


async def test_missing_rights_are_reported_until_they_are_granted(env: ApplierEnv) -> None:
    """The owner of the member has left Secrets out of the rights of the agent."""
    name = f"agent-{env.id}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": env.namespace}
    await env.member.create(ACCOUNTS, {"metadata": {"name": name}}, namespace=env.namespace)
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [FLEET], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
    ]
    await env.member.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await env.member.create(ROLE_BINDINGS, binding)
    account = await env.member_cluster.service_account(env.namespace, name)
    limited = env.member_cluster.client(kubeconfig=account)
    try:
        async with running(env.applier(member=limited)):
            await env.put_work(secret(env), env.config_map())
            entries = await env.until_reasons("ManifestApplyFailed", "Applied")
            message = entries[0]["conditions"][0]["message"]
            assert message.startswith("Failed to apply the manifest (error: ")
            assert 'cannot create resource "secrets"' in message
            grant = [*rules, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]
            await env.member.patch(ROLES, name, MergePatch({"rules": grant}))
            await env.until_available()
            await env.delete_work()
            await env.until_gone(env.work)
    finally:
        await limited.close()


async def test_an_object_with_very_many_owners_is_reported(env: ApplierEnv) -> None:
    """API servers refuse a status whose messages have more than 32,768 characters."""
    owners = [
        {"apiVersion": "example.com/v1", "kind": "Owner", "name": f"{n:0250}", "uid": f"{n}"}
        for n in range(200)
    ]
    body = env.config_map(k="old")
    body["metadata"]["ownerReferences"] = owners
    await env.member.create(CONFIG_MAPS, body)
    async with env.running():
        await env.put_work(env.config_map(k="v"))
        [entry] = await env.until_reasons("FailedToTakeOver")
        assert "is owned by Owner 000" in entry["conditions"][0]["message"]


def secret(env: ApplierEnv) -> Json:
    metadata = {"name": "password", "namespace": env.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"p": "b2xk"}}


HOSTILE: dict[str, Json] = {
    "data is a number": {"data": 7},
    "data is a list": {"data": ["x"]},
    "values are objects": {"data": {"k": {"nested": [1]}}},
    "spec of a kind without one": {"spec": {"replicas": 3}},
    "deployment with a text": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": "text"},
    "deployment with lists": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": [], "selector": [[]], "replicas": "three"},
    },
    "containers is an object": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {"spec": {"containers": {"name": "c"}}}},
    },
    "service with ports of every type": {
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {"ports": [None, 1, "x", [], {"port": "80"}]},
    },
    "job with a text for a TTL": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"ttlSecondsAfterFinished": "soon", "template": 7},
    },
    "definition without a schema": {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {"versions": "v1", "names": []},
    },
    "a kind that cannot be read": {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"},
    "a kind that is a list": {"kind": "ConfigMapList", "items": []},
    "a version that is a path": {"apiVersion": "v1/../../secrets"},
    "a status of its own": {"status": "text", "data": {"k": "v"}, "immutable": "yes"},
    "deep nesting": {"data": {"k": json.loads("[" * 200 + "]" * 200)}},
    "a name with a slash": {"metadata": {"name": "a/b"}},
    "a name of dots": {"metadata": {"name": ".."}},
    "a name of one dot": {"metadata": {"name": "."}},
    "a name with a percent sign": {"metadata": {"name": "%2e%2e"}},
    "a namespace of dots": {"metadata": {"name": "x", "namespace": ".."}},
    "an empty name": {"metadata": {"name": ""}},
    "a cluster-scoped kind in a namespace": {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "UPPER", "namespace": "default"},
    },
    "labels of no form": {"metadata": {"labels": {"!": "?"}}},
    "an annotation of ours": {
        "metadata": {"annotations": {"kubernetes-fleet.io/last-applied-configuration": "{"}},
        "data": [],
    },
    "finalizers of no form": {"metadata": {"finalizers": ["x"]}},
    "owners": {
        "metadata": {"ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]},
        "data": 1,
    },
}


async def test_hostile_manifests_fail_alone(env: ApplierEnv) -> None:
    """For each invalid manifest that the hub's API server accepts, the others are placed."""
    accepted = []
    for number, (title, change) in enumerate(HOSTILE.items()):
        body = env.config_map(f"hostile-{number}")
        body |= {name: value for name, value in change.items() if name != "metadata"}
        body["metadata"] = {**body["metadata"], **change.get("metadata", {})}
        if await is_accepted(env, body):
            accepted.append((title, body))
    assert len(accepted) > len(HOSTILE) * 2 / 3
    good = [env.config_map("first"), env.config_map("last")]
    async with env.running() as run:
        await env.put_work(good[0], *(body for _, body in accepted), good[1])

        async def all_reported() -> bool:
            reasons = await env.manifest_reasons()
            assert reasons[0] == reasons[-1] == "Applied"
            assert len(reasons) == len(accepted) + 2
            return True

        await until(all_reported)
        reasons = dict(
            zip((title for title, _ in accepted), (await env.manifest_reasons())[1:-1], strict=True)
        )
        harmless = {"spec of a kind without one"}  # the server drops unknown fields
        assert {title for title, reason in reasons.items() if reason == "Applied"} <= harmless
        await run.is_quiet(retries=True)
        # Updates of placed objects go through the three-way merge
        good_bodies = [env.config_map(f"hostile-{n}") for n in range(len(accepted))]
        await env.put_work(*good_bodies)
        await env.until_available()
        mixed = [
            {**good_bodies[n], **{k: v for k, v in body.items() if k in ("data", "immutable")}}
            for n, (_, body) in enumerate(accepted)
        ]
        await env.put_work(good[0], *mixed, good[1])
        await until(all_reported)


async def is_accepted(env: ApplierEnv, manifest: Any) -> bool:
    try:
        await env.put_work(manifest, name="probe")
    except ApiError:
        return False
    return True


async def test_a_damaged_last_manifest_on_the_object_is_replaced(env: ApplierEnv) -> None:
    key = "kubernetes-fleet.io/last-applied-configuration"
    async with env.running() as run:
        await env.put_work(env.config_map(k="v"))
        await env.until_available()
        for damage in ("{", "[]", '{"metadata": 7}', '{"data": [1], "metadata": {"labels": 3}}'):
            await env.edit({"metadata": {"annotations": {key: damage}}})

            async def repaired(damage: str = damage) -> bool:
                placed = await env.placed()
                assert placed and placed["metadata"]["annotations"][key] != damage
                return True

            await until(repaired)
        await run.is_quiet()


@pytest.mark.parametrize("field", ["labels", "annotations"])
async def test_labels_and_annotations_that_others_add_stay(env: ApplierEnv, field: str) -> None:
    manifest = env.config_map(k="v")
    manifest["metadata"][field] = {"ours": "1"}
    async with env.running() as run:
        await env.put_work(manifest)
        await env.until_available()
        await env.edit({"metadata": {field: {"theirs": "2", "ours": "changed"}}})

        async def merged() -> bool:
            placed = await env.placed()
            assert placed
            texts = placed["metadata"][field]
            assert (texts["ours"], texts["theirs"]) == ("1", "2")
            return True

        await until(merged)
        await run.is_quiet()


async def test_a_copy_that_leasing_made_is_never_taken_over(env: ApplierEnv) -> None:
    body = env.config_map(k="lent")
    body["metadata"]["labels"] = {"kubeocean.io/managed-by": "kubeocean"}
    await env.member.create(CONFIG_MAPS, body)
    async with env.running():
        await env.put_work(env.config_map(k="v"))
        [entry] = await env.until_reasons("FailedToTakeOver")
        assert "ClusterBinding" in entry["conditions"][0]["message"]
        await env.member.patch(
            CONFIG_MAPS,
            "settings",
            MergePatch({"metadata": {"labels": None}}),
            env.namespace,
        )
        await env.until_reasons("Applied")
