"""Health checks in CEL: how the status of an object in the member decides that of its Work."""

from __future__ import annotations

import pytest

from kubeocean.api.fleet.names import ANNOTATION_AVAILABLE_WHEN
from kubeocean.fleet.extensions import OURS, UPSTREAM
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.applier_env import EVENTS_ONLY, ApplierEnv
from support.custom_resources import define
from support.wait import until

DATABASES = Resource("kubeocean.test", "v1", "databases", "Database", True, Untyped)
IS_READY = "self.status.phase == 'Ready'"
SLOW = "self.spec.list.all(n, !self.spec.text.matches('(a|b)*z'))"


@pytest.fixture(scope="session")
async def databases(member: Client) -> None:
    await define(member, DATABASES, with_status=True)


pytestmark = pytest.mark.usefixtures("databases")


def database(env: ApplierEnv, expression: str | None, name: str = "db", **spec: object) -> Json:
    metadata: Json = {"name": name, "namespace": env.namespace}
    if expression is not None:
        metadata["annotations"] = {ANNOTATION_AVAILABLE_WHEN: expression}
    api_version = DATABASES.api_version
    return {"apiVersion": api_version, "kind": "Database", "metadata": metadata, "spec": spec}


async def report_phase(env: ApplierEnv, phase: str, name: str = "db") -> None:
    """Write the status of a Database in the member, as its controller would."""
    patch = MergePatch({"status": {"phase": phase}})
    await env.member.patch(DATABASES, name, patch, env.namespace, subresource="status")


async def until_availability(env: ApplierEnv, *expected: tuple[str, str]) -> None:
    """Wait until the manifests have these statuses and reasons of Available, and the Work all."""

    async def reached() -> bool:
        assert [each[:2] for each in await availability(env)] == list(expected)
        status, _ = (await env.conditions())["Available"]
        assert status == ("False" if any(each[0] == "False" for each in expected) else "True")
        return True

    await until(reached, waiting_for=f"availability {expected}")


async def availability(env: ApplierEnv) -> list[tuple[str, str, str]]:
    """Return status, reason and message of the condition Available of each manifest."""
    return [
        (each["status"], each["reason"], each["message"])
        for entry in await env.entries()
        for each in entry["conditions"]
        if each["type"] == "Available"
    ]


AVAILABLE = ("True", "Available")
NOT_YET = ("False", "ManifestNotAvailableYet")
FAILED = ("False", "Failed")
NOT_TRACKABLE = ("True", "NotTrackable")


async def test_an_object_is_available_when_its_annotation_says_so(env: ApplierEnv) -> None:
    checks = OURS.health_checks({})
    async with env.running(health_checks=checks, backoff=EVENTS_ONLY) as run:
        await env.put_work(database(env, IS_READY), env.config_map(k="v"))
        await until_availability(env, NOT_YET, AVAILABLE)
        (message, _) = (each[2] for each in await availability(env))
        assert message == (
            "the object is not available yet: the object has no field"
            f' "status", which {IS_READY} reads'
        )
        await run.is_quiet()

        await report_phase(env, "Starting")

        async def is_false() -> bool:
            (_, _, message), _ = await availability(env)
            assert message == f"the object is not available yet: {IS_READY} is false"
            return True

        await until(is_false)
        await report_phase(env, "Ready")
        await until_availability(env, AVAILABLE, AVAILABLE)
        assert (await env.conditions())["Available"] == ("True", "AllManifestsAvailable")
        await run.is_quiet()
        await report_phase(env, "Failed")
        await until_availability(env, NOT_YET, AVAILABLE)
        await run.is_quiet()


async def test_a_changed_annotation_decides_at_once(env: ApplierEnv) -> None:
    checks = OURS.health_checks({})
    async with env.running(health_checks=checks, backoff=EVENTS_ONLY) as run:
        await env.put_work(database(env, "self.spec.size > 1", size=2), env.config_map(k="v"))
        await until_availability(env, AVAILABLE, AVAILABLE)
        await env.put_work(database(env, "self.spec.size > 2", size=2), env.config_map(k="v"))
        await until_availability(env, NOT_YET, AVAILABLE)
        # A wrong expression is the problem of its object alone
        await env.put_work(database(env, "self.spec.size >", size=2), env.config_map(k="w"))
        await until_availability(env, FAILED, AVAILABLE)
        placed = await env.placed()
        assert placed is not None and placed["data"] == {"k": "w"}
        (_, _, message), _ = await availability(env)
        assert message.startswith("the health check self.spec.size > could not be evaluated: line")
        assert message.endswith(f"; correct the annotation {ANNOTATION_AVAILABLE_WHEN}")
        await run.is_quiet()
        # Without the annotation the kind decides; this kind has no conditions
        await env.put_work(database(env, None, size=2), env.config_map(k="w"))
        await until_availability(env, NOT_TRACKABLE, AVAILABLE)


async def test_the_costliest_expression_delays_no_other_object(env: ApplierEnv) -> None:
    checks = OURS.health_checks({})
    costly = database(env, SLOW, "costly", text="ab" * 200_000, list=list(range(5000)))
    async with env.running(health_checks=checks, backoff=EVENTS_ONLY) as run:
        await env.put_work(costly, database(env, "self.kind == 'Database'"), env.config_map())
        await until_availability(env, FAILED, AVAILABLE, AVAILABLE)
        (_, _, message), *_ = await availability(env)
        assert "of processor time" in message
        await run.is_quiet()


async def test_the_member_cannot_replace_the_expression(env: ApplierEnv) -> None:
    async with env.running(health_checks=OURS.health_checks({})):
        await env.put_work(database(env, IS_READY))
        await until_availability(env, NOT_YET)
        edited = {"metadata": {"annotations": {ANNOTATION_AVAILABLE_WHEN: "true"}}}
        await env.edit(edited, "db", DATABASES)

        async def corrected() -> bool:
            placed = await env.placed("db", DATABASES)
            assert placed is not None
            annotations = placed["metadata"]["annotations"]
            assert annotations[ANNOTATION_AVAILABLE_WHEN] == IS_READY
            return True

        await until(corrected)
        await until_availability(env, NOT_YET)


async def test_expressions_of_kinds_replace_trackers(env: ApplierEnv) -> None:
    by_kind = {
        ("kubeocean.test", "Database"): "self.status.phase == 'Idle'",
        ("", "ConfigMap"): "self.data.k == 'ready'",
    }
    checks = OURS.health_checks(by_kind)
    async with env.running(health_checks=checks, backoff=EVENTS_ONLY):
        manifests = database(env, None), database(env, "true", "own"), env.config_map(k="v")
        await env.put_work(*manifests)
        await until_availability(env, NOT_YET, AVAILABLE, NOT_YET)
        await report_phase(env, "Idle")
        await env.put_work(*manifests[:2], env.config_map(k="ready"))
        await until_availability(env, AVAILABLE, AVAILABLE, AVAILABLE)


async def test_kubefleets_statuses_are_the_same_with_and_without_annotations(
    env: ApplierEnv,
) -> None:
    checks = UPSTREAM.health_checks({("", "ConfigMap"): "false"})
    async with env.running(trackers=UPSTREAM.tracker, health_checks=checks):
        await env.put_work(database(env, "no expression"), env.config_map())
        await until_availability(env, NOT_TRACKABLE, AVAILABLE)
        messages = [each[2] for each in await availability(env)]
        assert messages == ["the kind is not trackable", "the object is available"]
