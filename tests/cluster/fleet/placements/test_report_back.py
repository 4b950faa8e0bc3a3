"""Statuses that members report back, written onto the hub's own objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.fleet.extensions import OURS, UPSTREAM, Extensions
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.objects import Condition, Json, Key, Resource, Untyped
from support.controller_env import Crash, quiet
from support.faults import Crashed, Faults
from support.placement_env import PlacementEnv, all_applied, conditions_of, now
from support.wait import until

SERVICES: Resource[Untyped] = Resource("", "v1", "services", "Service", True, Untyped)
CONDITION = "ResourcePlacementStatusReportedBack"
ORIGINAL = {"type": "Mirror", "destination": "OriginalResource"}
WORK_API = {"type": "Mirror", "destination": "WorkAPI"}
FIRST, SECOND = "192.0.2.1", "192.0.2.2"
MOST_WRITES = 14  # of placing one Service on one cluster; later crashes do not happen


def service(name: str = "web") -> Json:
    return {"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}


def service_selector(name: str = "web") -> Json:
    return {"group": "", "version": "v1", "kind": "Service", "name": name}


def load_balancer(ip: str) -> Json:
    return {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}}


def report(name: str, namespace: str, status: Json, **identifier: Any) -> Json:
    """Return the status entry of a Service that is applied and has this status."""
    conditions = [
        {
            "type": type_,
            "status": "True",
            "reason": type_,
            "message": "",
            "lastTransitionTime": now(),
        }
        for type_ in ("Applied", "Available")
    ]
    place = {"ordinal": 0, "version": "v1", "kind": "Service", "resource": "services"}
    return {
        "identifier": place | {"namespace": namespace, "name": name} | identifier,
        "conditions": conditions,
        "backReportedStatus": {
            "observedStatus": {"apiVersion": "v1", "kind": "Service", "status": status},
            "observationTime": now(),
        },
    }


def reporting(ip: str) -> Any:
    """Return the judgement of members whose Services have this address."""

    def verdict(work: Work) -> Json:
        entries = [
            report(each["metadata"]["name"], each["metadata"]["namespace"], load_balancer(ip))
            for each in work.spec.workload.manifests
        ]
        return all_applied(work) | {"manifestConditions": entries}

    return verdict


async def start(env: PlacementEnv, *members: str, name: str = "web", **strategy: Any) -> Key:
    """Create a Service, and place it on these members with a strategy for reports."""
    with suppress(Exception):
        await env.client.create(SERVICES, service(name), namespace=env.namespace)
    return await env.place(
        service_selector(name),
        namespace=env.namespace,
        policy={"placementType": "PickFixed", "clusterNames": list(members)},
        strategy={"reportBackStrategy": strategy or ORIGINAL},
    )


async def address(env: PlacementEnv, name: str = "web") -> str:
    """Return the address in the status of the hub's Service; empty if it has none."""
    obj = await env.client.get(SERVICES, name, env.namespace, keep_raw=True)
    ingress = (obj.content().get("status") or {}).get("loadBalancer", {}).get("ingress") or [{}]
    return str(ingress[0].get("ip", ""))


async def written(env: PlacementEnv, ip: str) -> None:
    async def is_written() -> bool:
        assert await address(env) == ip
        return True

    await until(is_written)


async def change_report(env: PlacementEnv, key: Key, *entries: Json) -> None:
    for work in await env.works(key):
        await env.client.patch(
            WORKS,
            work.name,
            MergePatch({"status": {"manifestConditions": list(entries)}}),
            work.namespace,
            subresource="status",
        )


async def reported(env: PlacementEnv, key: Key, status: str, reason: str) -> Condition:
    """Wait for the placement's condition about its back reports; return the condition."""

    async def has_condition() -> Condition | None:
        placement = await env.placement(key)
        state = conditions_of(placement.status.conditions).get(CONDITION)
        assert state == (status, reason, placement.metadata.generation), state
        return next(each for each in placement.status.conditions if each.type == CONDITION)

    found = await until(has_condition)
    assert found is not None
    return found


async def test_a_status_is_written_when_it_changes_and_only_then(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)
    faults = Faults()
    async with env.reporting(reporting(FIRST)):
        async with env.controlling(faults):
            await env.completed(key, a)
            await written(env, FIRST)
            condition = await reported(env, key, "True", "StatusReportedBack")
            assert condition.message == "The status of 1 object is written onto the hub's objects"
            await quiet(faults)
            # An equal status at another time is no change
            entry = report("web", env.namespace, load_balancer(FIRST))
            entry["backReportedStatus"]["observationTime"] = "2020-01-01T00:00:00Z"
            await change_report(env, key, entry)
            await quiet(faults)
            await change_report(env, key, report("web", env.namespace, load_balancer(SECOND)))
            await written(env, SECOND)
            await quiet(faults)
            assert (await env.placement(key)).status.observed_resource_index == "0"
        writes = [request for request in faults.requests if request.writes]
        assert len([each for each in writes if "/services/web/status" in each.path]) == 2

        restarted = Faults()
        async with env.controlling(restarted):
            await quiet(restarted)
        assert [request for request in restarted.requests if request.writes] == []


async def test_a_status_that_others_write_is_not_fought_over(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)
    faults = Faults()
    async with env.reporting(reporting(FIRST)), env.controlling(faults):
        await written(env, FIRST)
        await reported(env, key, "True", "StatusReportedBack")
        await env.client.patch(
            SERVICES,
            "web",
            MergePatch({"status": load_balancer("203.0.113.9")}),
            env.namespace,
            subresource="status",
        )
        await quiet(faults)
        assert await address(env) == "203.0.113.9"
        await change_report(env, key, report("web", env.namespace, load_balancer(SECOND)))
        await written(env, SECOND)


async def test_an_object_that_is_made_again_gets_the_status(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)
    async with env.reporting(reporting(FIRST)), env.controlling():
        await written(env, FIRST)
        old = await env.client.get(SERVICES, "web", env.namespace)
        await env.client.delete(SERVICES, "web", env.namespace, uid=old.uid)
        await env.client.create(SERVICES, service(), namespace=env.namespace)
        assert await address(env) == ""
        await written(env, FIRST)
        await reported(env, key, "True", "StatusReportedBack")


@pytest.mark.parametrize("extensions", [OURS, UPSTREAM], ids=["extended", "upstream"])
async def test_several_clusters_write_nothing_until_one_is_left(
    env: PlacementEnv, extensions: Extensions
) -> None:
    a, b = await env.join("a", "b")
    key = await start(env, a, b)
    faults = Faults()
    async with env.reporting(reporting(FIRST)), env.controlling(faults, extensions=extensions):
        await env.completed(key, a, b)
        if extensions is OURS:
            condition = await reported(env, key, "False", "NotPlacedOnOneCluster")
            assert condition.message.endswith("; 2 clusters are picked")
        await quiet(faults)
        assert await address(env) == ""
        await env.change(key, policy={"placementType": "PickFixed", "clusterNames": [b]})
        await env.completed(key, b)
        await written(env, FIRST)
        if extensions is OURS:
            await reported(env, key, "True", "StatusReportedBack")
        await quiet(faults)
        types = [each.type for each in (await env.placement(key)).status.conditions]
        assert types.count(CONDITION) == (extensions is OURS)
        assert len(types) == 6 + (extensions is OURS)


async def test_a_changed_strategy_takes_effect(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a, type="Disabled")
    faults = Faults()

    async def has_strategy(strategy: Json | None) -> bool:
        (work,) = await env.works(key)
        stored = work.spec.report_back_strategy
        expected = strategy or {"type": "Disabled", "destination": ""}
        assert (stored.type, stored.destination) == (expected["type"], expected["destination"])
        return True

    async with env.reporting(reporting(FIRST)), env.controlling(faults):
        await env.completed(key, a)
        await until(lambda: has_strategy(None))
        await quiet(faults)
        assert await address(env) == ""
        await env.change(key, strategy={"reportBackStrategy": ORIGINAL})
        await until(lambda: has_strategy(ORIGINAL))
        await written(env, FIRST)
        await reported(env, key, "True", "StatusReportedBack")

        await env.change(key, strategy={"reportBackStrategy": WORK_API})
        await until(lambda: has_strategy(WORK_API))
        await env.completed(key, a)
        await change_report(env, key, report("web", env.namespace, load_balancer(SECOND)))

        async def has_no_condition() -> bool:
            types = {each.type for each in (await env.placement(key)).status.conditions}
            return CONDITION not in types

        await until(has_no_condition)
        await quiet(faults)
        assert await address(env) == FIRST, "the last status stays"


async def test_a_member_chooses_no_objects_of_the_hub(env: PlacementEnv) -> None:
    """A member may write anything into the status of its Works, and even their labels."""
    a, b = await env.join("a", "b")
    key = await start(env, a)
    await env.client.create(SERVICES, service("other"), namespace=env.namespace)
    faults = Faults()
    async with env.reporting(reporting(FIRST)), env.controlling(faults):
        await written(env, FIRST)
        (work,) = await env.works(key)
        bad = load_balancer(SECOND)
        wrong_kind = report("web", env.namespace, bad)
        wrong_kind["backReportedStatus"]["observedStatus"]["kind"] = "Deployment"
        failed = report("web", env.namespace, bad)
        failed["conditions"][0]["status"] = "False"
        await change_report(
            env,
            key,
            report("other", env.namespace, bad),
            report("web", "default", bad),
            report("web", env.namespace, bad, kind="Namespace", resource="namespaces"),
            wrong_kind,
            failed,
        )
        # The cluster that is not picked creates a Work of its own with the labels of the other
        forged = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": work.name, "labels": dict(work.labels)},
            "spec": {"reportBackStrategy": ORIGINAL, "workload": {"manifests": []}},
        }
        space = names.member_namespace(b)
        await env.client.create(WORKS, forged, namespace=space)
        body = all_applied(work) | {"manifestConditions": [report("web", env.namespace, bad)]}
        await env.client.patch(
            WORKS, work.name, MergePatch({"status": body}), space, subresource="status"
        )
        await quiet(faults)
        assert await address(env) == FIRST
        assert await address(env, "other") == ""


async def test_two_placements_that_report_one_object_write_nothing(env: PlacementEnv) -> None:
    a, b = await env.join("a", "b")
    key = await start(env, a)
    faults = Faults()
    addresses = {names.member_namespace(a): FIRST, names.member_namespace(b): SECOND}

    def verdict(work: Work) -> Json:
        return reporting(addresses[work.namespace])(work)

    async with env.reporting(verdict), env.controlling(faults):
        await written(env, FIRST)
        second = await env.place(
            service_selector(),
            namespace=env.namespace,
            name="second",
            policy={"placementType": "PickFixed", "clusterNames": [b]},
            strategy={"reportBackStrategy": ORIGINAL},
        )
        for one, other in ((key, second), (second, key)):
            condition = await reported(env, one, "False", "StatusReportBackFailed")
            assert condition.message == (
                f"The status of Service {env.namespace}/web is not written:"
                f" the placement {other} reports it back, too"
            )
        await quiet(faults)
        assert await address(env) == FIRST
        await env.delete(key)
        await written(env, SECOND)
        await reported(env, second, "True", "StatusReportedBack")


async def test_a_status_that_the_hub_refuses_is_reported(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)
    faults = Faults()
    async with env.reporting(reporting("no address")), env.controlling(faults):
        condition = await reported(env, key, "False", "StatusReportBackFailed")
        assert "ingress[0].ip" in condition.message
        await quiet(faults)
        await change_report(env, key, report("web", env.namespace, load_balancer(FIRST)))
        await written(env, FIRST)
        await reported(env, key, "True", "StatusReportedBack")


@asynccontextmanager
async def crashing(env: PlacementEnv, n: int) -> AsyncIterator[Crash]:
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with env.controlling(faults):
            yield crash


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, MOST_WRITES))
async def test_a_crash_while_reporting_back(env: PlacementEnv, n: int) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)

    async def is_reported() -> bool:
        states = conditions_of((await env.placement(key)).status.conditions)
        return states.get(CONDITION, ("",))[0] == "True"

    async with env.reporting(reporting(FIRST)):
        async with crashing(env, n) as crash:
            await crash.or_until(is_reported)
        faults = Faults()
        async with env.controlling(faults):
            await env.completed(key, a, index="0")
            await written(env, FIRST)
            await reported(env, key, "True", "StatusReportedBack")
            await quiet(faults)


async def test_two_leaders_report_back_as_one(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    key = await start(env, a)
    plans = Faults(seed=5), Faults(seed=6)
    for faults in plans:
        faults.lose_answer(times=3)
    async with (
        env.reporting(reporting(FIRST)),
        env.controlling(plans[0]),
        env.controlling(plans[1]),
    ):
        await written(env, FIRST)
        await change_report(env, key, report("web", env.namespace, load_balancer(SECOND)))
        for faults in plans:
            faults.cut()
        await written(env, SECOND)
        await reported(env, key, "True", "StatusReportedBack")
        await quiet(*plans)
