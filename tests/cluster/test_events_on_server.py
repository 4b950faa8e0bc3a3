"""Events on a real kube-apiserver: they appear, add up, and stay few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubeocean.local.audit import Audit
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from kubeocean.runtime.events import COMBINED, EventRecorder, reference
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    ConfigMap,
    Event,
    ObjectReference,
)
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json
from kubeocean.runtime.retries import RetryPolicy
from support.faults import Faults
from support.wait import until

QUICK = RetryPolicy(attempts=4, base_s=0.05, cap_s=0.1)


@asynccontextmanager
async def recording(client: Client, **options: Any) -> AsyncIterator[EventRecorder]:
    """Yield a recorder with a running writer; at the end everything has been written."""
    settings = {"component": "kubeocean-test", "instance": "test-0", "retry": QUICK} | options
    recorder = EventRecorder(client, **settings)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(recorder.run())
        await asyncio.sleep(0)  # a task that is cancelled before its first step does nothing
        yield recorder
        writer.cancel()


async def config_map(client: Client, namespace: str, name: str = "subject") -> ObjectReference:
    made: ConfigMap = await client.create(
        CONFIG_MAPS, {"metadata": {"name": name, "namespace": namespace}}
    )
    return reference(CONFIG_MAPS, made)


async def events(client: Client, about: ObjectReference) -> list[Event]:
    """Return all Events about an object, oldest count first."""
    listed = await client.list(
        EVENTS,
        about.namespace or "default",
        fields=f"involvedObject.uid={about.uid}",
        keep_raw=True,
    )
    return sorted(listed.items, key=lambda event: event.count or 0)


async def test_an_event_appears_with_everything_people_look_for(
    client: Client, namespace: str
) -> None:
    about = await config_map(client, namespace)
    async with recording(client) as recorder:
        recorder.emit(about, "Warning", "NameTaken", "it belongs to someone else", action="Create")
    (event,) = await events(client, about)
    whole = event.content()
    assert event.name.startswith("subject.")
    assert whole["involvedObject"]["kind"] == "ConfigMap"
    assert whole["involvedObject"]["resourceVersion"] == about.resource_version
    assert (whole["type"], whole["reason"]) == ("Warning", "NameTaken")
    assert whole["message"] == "it belongs to someone else"
    assert (whole["action"], whole["count"]) == ("Create", 1)
    assert whole["source"] == {"component": "kubeocean-test"}
    assert whole["reportingComponent"] == "kubeocean-test"
    assert whole["reportingInstance"] == "test-0"
    assert whole["firstTimestamp"] == whole["lastTimestamp"]


async def test_kubectl_shows_it(
    client: Client, namespace: str, cluster: Cluster, assets: Programs
) -> None:
    about = await config_map(client, namespace)
    async with recording(client) as recorder:
        for _ in range(3):
            recorder.emit(about, "Normal", "Adopted", "took over what was there")
    shown = await asyncio.create_subprocess_exec(
        *(str(assets.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig)),
        *("-n", namespace, "describe", "configmap", "subject"),
        stdout=asyncio.subprocess.PIPE,
    )
    text = (await shown.communicate())[0].decode()
    (line,) = [line for line in text.splitlines() if "Adopted" in line]
    assert line.split()[:2] == ["Normal", "Adopted"]
    assert "(x3 over" in line
    assert line.endswith("kubeocean-test  took over what was there")


async def test_the_new_api_shows_it_too(client: Client, namespace: str) -> None:
    about = await config_map(client, namespace)
    async with recording(client) as recorder:
        recorder.emit(about, "Normal", "Adopted", "took over what was there")
    listed: Json = await client.request_json(
        "GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    )
    (event,) = listed["items"]
    assert event["note"] == "took over what was there"
    assert event["reportingController"] == "kubeocean-test"
    assert event["regarding"]["uid"] == about.uid


async def test_the_same_event_again_and_again_is_one_object_with_a_count(
    client: Client, namespace: str
) -> None:
    about = await config_map(client, namespace)
    metrics = Metrics()
    async with recording(client, metrics=metrics) as recorder:
        for number in range(1, 21):
            recorder.emit(about, "Warning", "Unreachable", "the worker does not answer")

            async def counted(number: int = number) -> bool:
                return [event.count for event in await events(client, about)] == [number]

            await until(counted, waiting_for=f"an event with count {number}")
    (event,) = await events(client, about)
    assert event.count == 20
    assert metrics.value("kubeocean_events_written_total") == 20


async def test_a_burst_of_the_same_event_costs_few_writes(
    client: Client, namespace: str, cluster: Cluster
) -> None:
    about = await config_map(client, namespace)
    audit = Audit(cluster.audit_log)
    mark = audit.mark()
    async with recording(client) as recorder:
        for _ in range(1000):
            recorder.emit(about, "Warning", "Unreachable", "the worker does not answer")
    (event,) = await events(client, about)
    assert event.count is not None
    assert event.count >= 25
    # Only Events: the cluster itself makes things in a new namespace, too.
    requested = [r for r in audit.requests(since=mark) if r.namespace == namespace]
    verbs = [r.verb for r in requested if r.resource == "events"]
    assert verbs.count("create") == 1
    assert verbs.count("patch") <= 1


async def test_spam_about_one_object_is_bounded(
    client: Client, namespace: str, cluster: Cluster
) -> None:
    about = await config_map(client, namespace)
    other = await config_map(client, namespace, "other")
    audit = Audit(cluster.audit_log)
    mark = audit.mark()
    metrics = Metrics()
    async with recording(client, metrics=metrics) as recorder:
        for number in range(500):
            recorder.emit(about, "Warning", "Failed", f"attempt {number} failed")
            await asyncio.sleep(0)  # lets the writer work, so that little is merged on the way
        recorder.emit(other, "Normal", "Fine", "this one is not spam")
    shown = await events(client, about)
    assert len(shown) == 10
    combined = [event for event in shown if event.message.startswith(COMBINED)]
    assert len(combined) == 1
    assert [event.message for event in await events(client, other)] == ["this one is not spam"]
    writes = [
        request
        for request in audit.requests(since=mark)
        if request.resource == "events" and request.namespace == namespace
        if request.verb in ("create", "patch")
    ]
    assert len(writes) <= 26
    assert metrics.value("kubeocean_events_dropped_total", {"reason": "spam"}) == 475


async def test_events_about_cluster_scoped_objects_are_in_the_default_namespace(
    client: Client, namespace: str
) -> None:
    about = reference(NAMESPACES, await client.get(NAMESPACES, namespace))
    async with recording(client) as recorder:
        recorder.emit(about, "Normal", "Lent", "capacity was lent")
    (event,) = await events(client, about)
    assert event.namespace == "default"


async def test_objects_of_any_name_can_have_events(client: Client, namespace: str) -> None:
    long = await config_map(client, namespace, "x" * 253)
    role = ObjectReference(
        api_version="rbac.authorization.k8s.io/v1", kind="ClusterRole", name="system:odd", uid="r-1"
    )
    async with recording(client) as recorder:
        for about in (long, role):
            recorder.emit(about, "Normal", "Seen", "it was seen")
    assert len(await events(client, long)) == 1
    assert len(await events(client, role)) == 1


async def test_an_event_that_was_deleted_comes_back_with_its_count(
    client: Client, namespace: str
) -> None:
    about = await config_map(client, namespace)
    async with recording(client) as recorder:
        recorder.emit(about, "Normal", "Seen", "it was seen")
        (event,) = await until(lambda: events(client, about))
        await client.delete(EVENTS, event.name, namespace, uid=event.uid)
        recorder.emit(about, "Normal", "Seen", "it was seen")
    (again,) = await events(client, about)
    assert (again.name, again.count) == (event.name, 2)
    assert again.uid != event.uid


async def test_lost_answers_and_failures_do_not_make_two_events(
    client: Client, namespace: str, cluster: Cluster
) -> None:
    about = await config_map(client, namespace)
    faults = Faults()
    shaky = cluster.client(wrap=faults.wrap)
    faults.lose_answer(times=1)
    faults.answer(503, times=1)
    async with recording(shaky) as recorder:
        for _ in range(3):
            recorder.emit(about, "Normal", "Seen", "it was seen")
    await shaky.close()
    (event,) = await events(client, about)
    assert event.count == 3


async def test_an_event_that_the_server_refuses_does_not_hold_up_others(
    client: Client, namespace: str
) -> None:
    about = await config_map(client, namespace)
    nowhere = ObjectReference(
        api_version="v1", kind="ConfigMap", namespace="no-such-namespace", name="x", uid="n-1"
    )
    metrics = Metrics()
    async with recording(client, metrics=metrics) as recorder:
        recorder.emit(nowhere, "Normal", "Seen", "it was seen")
        recorder.emit(about, "Normal", "Seen", "it was seen")
    assert len(await events(client, about)) == 1
    assert metrics.value("kubeocean_events_dropped_total", {"reason": "refused"}) == 1


async def test_the_end_does_not_wait_for_a_server_that_is_gone(
    client: Client, namespace: str, cluster: Cluster
) -> None:
    about = await config_map(client, namespace)
    faults = Faults()
    cut_off = cluster.client(wrap=faults.wrap)
    faults.partition()
    metrics = Metrics()
    slow = RetryPolicy(attempts=100, base_s=1, cap_s=1)
    started = time.monotonic()
    async with recording(cut_off, metrics=metrics, flush_s=0.5, retry=slow) as recorder:
        recorder.emit(about, "Normal", "Seen", "it was seen")
    await cut_off.close()
    assert time.monotonic() - started < 5
    assert metrics.value("kubeocean_events_dropped_total", {"reason": "stopped"}) == 1
    assert await events(client, about) == []
