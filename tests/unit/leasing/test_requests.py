"""Requests of a pod, compared with a model that starts its containers one by one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings

from kubeocean.errors import ConfigError
from kubeocean.leasing.requests import COUNTED_PODS, CountedPod, requests_of
from kubeocean.runtime.objects import Json
from support.pod_request_strategies import Drawn, drawn_pods
from support.quantity_strategies import stored_quantities
from unit.leasing.cases import container, init, pod, sidecar

unhurried = settings(deadline=None)


def requests(document: Json) -> dict[str, str]:
    counted = requests_of(msgspec.convert(document, CountedPod))
    return {name: str(amount) for name, amount in counted.items()}


def moments(drawn: Drawn) -> Iterator[dict[str, int]]:
    """Return the resources held while each init container runs, and then by the containers."""
    sidecars: list[dict[str, int]] = []
    for each in drawn.inits:
        yield total(*sidecars, each.counts)
        if each.sidecar:
            sidecars.append(each.counts)
    yield total(*sidecars, *(each.counts for each in drawn.containers))


def total(*lists: dict[str, int]) -> dict[str, int]:
    return {name: sum(each.get(name, 0) for each in lists) for each in lists for name in each}


def peak(drawn: Drawn) -> dict[str, int]:
    most: dict[str, int] = {}
    for moment in moments(drawn):
        most |= {name: max(most.get(name, 0), amount) for name, amount in moment.items()}
    whole = {k: v for k, v in drawn.pod_level.items() if k in ("cpu", "memory", "hugepages-2Mi")}
    most = total(most | whole, drawn.overhead, {"pods": 1000})
    return {name: amount for name, amount in most.items() if amount}


@unhurried
@given(drawn_pods())
def test_a_pod_requests_the_most_that_it_holds_at_any_moment(drawn: Drawn) -> None:
    counted = requests_of(msgspec.convert(drawn.document, CountedPod))
    in_milli = {name: amount.milli_value() for name, amount in counted.items() if amount}
    assert in_milli == ({} if drawn.ended else peak(drawn))


def test_a_pod_that_asks_for_nothing_is_still_a_pod() -> None:
    assert requests(pod(container())) == {"pods": "1"}
    assert requests({"spec": {}}) == {"pods": "1"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_requests_nothing(phase: str) -> None:
    assert requests(pod(container(cpu="1"), status={"phase": phase})) == {}


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown"])
def test_a_pod_that_did_not_end_requests_all(phase: str) -> None:
    assert requests(pod(container(cpu="1"), status={"phase": phase}))["cpu"] == "1"


def test_a_terminating_pod_still_requests() -> None:
    document = pod(container(cpu="1")) | {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert requests(document)["cpu"] == "1"


def test_requests_finer_than_thousandths_are_rounded_up_one_by_one() -> None:
    assert requests(pod(container("a", cpu="100u"), container("b", cpu="1500u")))["cpu"] == "3m"


def test_two_sidecars_run_beside_each_other() -> None:
    inits = (sidecar("a", cpu="1"), sidecar("b", cpu="2"))
    assert requests(pod(container(cpu="500m"), inits=inits))["cpu"] == "3500m"
    assert requests(pod(inits=inits))["cpu"] == "3"


def resized(reason: str, **held: str) -> Json:
    status = {"name": "app", "resources": {"requests": held}, "allocatedResources": held}
    condition = {"type": "PodResizePending", "status": "True", "reason": reason}
    return {"containerStatuses": [status], "conditions": [condition]}


def test_a_resize_that_has_to_wait_is_counted() -> None:
    status = resized("Deferred", cpu="1")
    assert requests(pod(container(cpu="3"), status=status))["cpu"] == "3"


def test_a_resize_that_cannot_be_made_is_not_counted() -> None:
    status = resized("Infeasible", cpu="1")
    assert requests(pod(container(cpu="3"), status=status))["cpu"] == "1"


def test_a_sidecar_holds_its_allocated_resources_and_another_init_container_does_not() -> None:
    held = {"resources": {"requests": {"cpu": "2"}}}
    status = {"initContainerStatuses": [{"name": "x", **held}]}
    assert requests(pod(inits=(sidecar("x", cpu="1"),), status=status))["cpu"] == "2"
    assert requests(pod(inits=(init("x", cpu="1"),), status=status))["cpu"] == "1"


def test_a_status_that_does_not_say_what_is_held_changes_nothing() -> None:
    status = {"containerStatuses": [{"name": "app", "allocatedResources": {"cpu": "9"}}]}
    assert requests(pod(container(cpu="1"), status=status))["cpu"] == "1"


def test_requests_of_a_whole_pod_exist_for_some_resources_only() -> None:
    whole = {"requests": {"memory": "1Gi", "nvidia.com/gpu": "2", "hugepages-2Mi": "4Mi"}}
    document = pod(container(cpu="1", memory="2Gi"), resources=whole)
    assert requests(document) == {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi", "pods": "1"}


@unhurried
@given(stored_quantities(), stored_quantities(), stored_quantities())
def test_every_amount_that_an_api_server_stores_is_counted(one: str, two: str, three: str) -> None:
    held = {"name": "app", "resources": {"requests": {"cpu": three}}, "allocatedResources": {}}
    document = pod(
        container(cpu=one, memory=two),
        inits=(init(cpu=three), sidecar(cpu=two)),
        resources={"requests": {"memory": two}},
        overhead={"cpu": one},
        status={"phase": "Running", "containerStatuses": [held]},
    )
    counted = requests_of(msgspec.convert(document, CountedPod))
    assert counted["pods"].value() == 1
    assert all(str(amount) for amount in counted.values())


def test_an_amount_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"requests\.cpu"):
        requests(pod(container(cpu="much")))


def test_counted_pods_are_read_where_pods_are() -> None:
    assert COUNTED_PODS.path("team", "web") == "/api/v1/namespaces/team/pods/web"
    assert COUNTED_PODS.type is CountedPod
