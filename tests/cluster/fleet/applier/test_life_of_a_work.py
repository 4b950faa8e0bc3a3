"""A Work from its creation to its deletion, and the objects that it places."""

from __future__ import annotations

from kubeocean.api.fleet.names import (
    ANNOTATION_LAST_APPLIED,
    ANNOTATION_SPEC_HASH,
    FIELD_MANAGER,
    FINALIZER_WORK,
)
from support.applier_env import ApplierEnv
from support.wait import until


async def test_a_config_map_follows_its_work(env: ApplierEnv) -> None:
    async with env.running():
        await env.put_work(env.config_map(k="one"))
        await env.until_available()
        placed, owner, work = await env.placed(), await env.applied_work(), await env.work()
        assert placed and owner and work
        assert placed["data"] == {"k": "one"}
        metadata = placed["metadata"]
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "placement.kubernetes-fleet.io/v1beta1",
                "kind": "AppliedWork",
                "name": env.name(),
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
        ]
        assert set(metadata["annotations"]) == {ANNOTATION_SPEC_HASH, ANNOTATION_LAST_APPLIED}
        assert "labels" not in metadata
        assert {entry["manager"] for entry in metadata["managedFields"]} == {FIELD_MANAGER}
        assert work["metadata"]["finalizers"] == [FINALIZER_WORK]
        assert work["metadata"]["generation"] == 1
        assert owner["spec"] == {"workName": env.name(), "workNamespace": env.hub_namespace}
        identifier = {
            "ordinal": 0,
            "version": "v1",
            "kind": "ConfigMap",
            "resource": "configmaps",
            "namespace": env.namespace,
            "name": "settings",
        }
        assert owner["status"] == {"appliedResources": [{**identifier, "uid": metadata["uid"]}]}
        assert await env.conditions() == {
            "Applied": ("True", "AllManifestsApplied"),
            "Available": ("True", "AllManifestsAvailable"),
        }
        [entry] = await env.entries()
        assert entry["identifier"] == identifier
        assert [(c["type"], c["reason"]) for c in entry["conditions"]] == [
            ("Applied", "Applied"),
            ("Available", "Available"),
        ]

        await env.put_work(env.config_map(k="two"))

        async def updated() -> bool:
            placed = await env.placed()
            assert placed and placed["data"] == {"k": "two"}
            return bool(await env.conditions())

        await until(updated)
        await env.is_quiet()

        await env.delete_work()
        await env.until_gone(env.work)
        assert await env.placed() is None
        assert await env.applied_work() is None
