"""Large Works, and the requests that Works cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeocean.fleet.applier import kubefleet_tracker
from kubeocean.local.assets import Assets
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.objects import Resource, Untyped
from support.applier_env import EVENTS_ONLY, ApplierEnv
from support.control_planes import plane
from support.faults import Faults, reads
from support.wait import until

MANY = 5_000
JOBS = Resource("batch", "v1", "jobs", "Job", True, Untyped)


async def test_a_work_costs_few_writes_and_then_none(env: ApplierEnv) -> None:
    async with env.running(backoff=EVENTS_ONLY) as run:
        await env.put_work(env.config_map(k="v"), metadata={"finalizers": [FINALIZER]})
        await env.until_available()
        await run.is_quiet()
        work = f"/works/{env.name()}"
        writes = [
            write.removeprefix("/apis/placement.kubernetes-fleet.io") for write in run.writes()
        ]
        assert [write.split(" ")[0] for write in writes] == [
            "POST",  # AppliedWork
            "PATCH",  # its status: write-ahead
            "POST",  # the object
            "PATCH",  # status of the AppliedWork
            "PATCH",  # status of the Work
        ]
        assert [write for write in writes if work in write] == [writes[-1]]
        # One change in the member is one read and one write
        reads_before = count_reads(run.faults)
        await env.edit({"data": {"k": "drifted"}})

        async def corrected() -> bool:
            placed = await env.placed()
            assert placed and placed["data"] == {"k": "v"}
            return True

        await until(corrected)
        await run.is_quiet()
        assert len(run.writes()) == len(writes) + 1
        assert count_reads(run.faults) == reads_before + 1


FINALIZER = "kubernetes-fleet.io/work-cleanup"


def read_paths(faults: Faults) -> list[str]:
    return [request.path for request in faults.requests if reads(request)]


def count_reads(faults: Faults) -> int:
    return len(read_paths(faults))


@pytest.mark.parametrize("type_", ["ClientSideApply", "ServerSideApply"])
async def test_a_restart_writes_nothing(env: ApplierEnv, type_: str) -> None:
    labels = {"app": "web"}
    meta = {"name": "web", "namespace": env.namespace, "labels": labels}
    container = {"name": "c", "image": "app:1", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    manifests = [env.config_map(f"c{number}", k="v") for number in range(8)] + [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        },
    ]
    async with env.running():
        await env.put_work(*manifests, strategy={"type": type_})
        await env.put_work(name="empty")
        await env.until_available()
        await env.until_available("empty")
    for _ in range(2):
        async with env.running() as run:
            await until(lambda: count_reads(run.faults) >= len(manifests))
            await run.is_quiet()
            assert run.writes() == []


@pytest.mark.slow
@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(900)
async def test_a_work_of_five_thousand_objects(
    env: ApplierEnv, assets: Assets, cluster_roots: Path
) -> None:
    async with (
        plane("member", assets, cluster_roots) as member,
        env.with_member(member) as env,
        env.running(backoff=EVENTS_ONLY) as run,
    ):
        manifests = [env.config_map(f"c{number}") for number in range(MANY)]
        manifests[17] = {**env.config_map("c17"), "data": {"k": 7}}
        await env.put_work(*manifests)

        async def reported() -> bool:
            conditions = await env.conditions()
            assert conditions.get("Applied") == ("False", "SomeManifestsAreNotApplied")
            return True

        await until(reported, within=600)
        conditions = await env.conditions()
        assert conditions["StatusTrimmed"] == ("True", "Oversized")
        failed = [
            each["identifier"]["ordinal"]
            for each in await env.entries()
            if each["conditions"][0]["status"] == "False"
        ]
        assert failed == [17]
        assert await names(env) == {f"c{number}" for number in range(MANY) if number != 17}
        await run.is_quiet(rest_s=5.0)
        # One change of one object is one read of it, however many there are
        before = len(read_paths(run.faults))
        await env.edit({"data": {"k": "drifted"}, "metadata": {"annotations": None}}, "c1")

        async def corrected() -> bool:
            placed = await env.placed("c1")
            assert placed and placed["metadata"].get("annotations")
            return True

        await until(corrected)
        await run.is_quiet(rest_s=5.0, retries=True)
        names_read = [path.rsplit("/", 1)[1] for path in read_paths(run.faults)[before:]]
        assert set(names_read) == {env.name(), "c1", "c17"}, "c17 has failed, and is tried again"
        assert names_read.count("c1") == 1
        # All but one go
        await env.put_work(env.config_map("c1"))

        async def removed() -> bool:
            return await names(env) == {"c1"}

        await until(removed, within=600)
        await env.until_available()


async def names(env: ApplierEnv) -> set[str]:
    listing = await env.member.list(CONFIG_MAPS, env.namespace)
    return {each.name for each in listing.items}


async def test_an_object_of_a_mebibyte(env: ApplierEnv) -> None:
    async with env.running() as run:
        for letter in "ab":
            await env.put_work(env.config_map(k=letter * 1_000_000))

            async def placed(letter: str = letter) -> bool:
                placed = await env.placed()
                assert placed and placed["data"]["k"][0] == letter
                assert (await env.conditions()).get("Available", ("",))[0] == "True"
                return True

            await until(placed)
        # It is applied server-side, and without force: the edit of another manager stays
        await env.edit({"data": {"k": "drifted"}})
        await env.until_reasons("ManifestApplyFailed")
        await run.is_quiet(retries=True)


async def test_a_finished_job_is_not_made_again(env: ApplierEnv) -> None:
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once", "namespace": env.namespace},
        "spec": {
            "suspend": True,  # no kubelet runs pods here
            "ttlSecondsAfterFinished": 2,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "app:1"}]}
            },
        },
    }
    async with env.running(trackers=kubefleet_tracker) as run:
        await env.put_work(manifest)
        await env.until_available()
        assert (await env.conditions())["Available"] == ("True", "WorkNotTrackable")
        job = await env.placed("once", JOBS)
        assert job
        time = "2026-01-01T00:00:00Z"
        status = {
            "startTime": time,
            "completionTime": time,
            "succeeded": 1,
            "uncountedTerminatedPods": {},
            "conditions": [
                {"type": each, "status": "True", "lastTransitionTime": time}
                for each in ("SuccessCriteriaMet", "Complete")
            ],
        }
        await env.member.patch(
            JOBS, "once", MergePatch({"status": status}), env.namespace, subresource="status"
        )
        await env.until_gone(lambda: env.placed("once", JOBS))
        await run.is_quiet()
        assert await env.placed("once", JOBS) is None
        assert await env.manifest_reasons() == ["Applied"]
        # Another manifest is another Job
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"  # type: ignore[index]
        await env.put_work(manifest)

        async def made_again() -> bool:
            return await env.placed("once", JOBS) is not None

        await until(made_again)
        await env.until_available()


async def test_statuses_are_reported_back(env: ApplierEnv) -> None:
    async with env.running(backoff=EVENTS_ONLY) as run:
        strategy = {"type": "Mirror", "destination": "WorkAPI"}
        await env.put_work(
            {**env.config_map("settings")},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "web", "namespace": env.namespace},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            },
            reportBackStrategy=strategy,
        )
        await env.until_reasons("Applied", "Applied")
        assert (await env.conditions())["Available"] == ("False", "SomeManifestsAreNotAvailable")
        services = Resource("", "v1", "services", "Service", True, Untyped)
        ingress = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
        await env.member.patch(
            services, "web", MergePatch({"status": ingress}), env.namespace, subresource="status"
        )

        async def reported() -> bool:
            entries = await env.entries()
            observed = entries[1]["backReportedStatus"]["observedStatus"]
            assert (observed["apiVersion"], observed["kind"]) == ("v1", "Service")
            addresses = observed["status"]["loadBalancer"].get("ingress") or [{}]
            assert addresses[0].get("ip") == "192.0.2.1"
            return True

        await until(reported)
        await env.until_available()
        await run.is_quiet()
