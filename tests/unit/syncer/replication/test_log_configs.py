"""Copies of LogConfigs: how they select pods in the worker, and when they change."""

from __future__ import annotations

from itertools import permutations

from kubeocean.api import naming
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids
from kubeocean.runtime.objects import Json, Untyped, decode_object, encode
from kubeocean.syncer.replication.log_configs import (
    LogConfigContext,
    forge,
    is_copy_of,
    is_legacy_copy_of,
    problem_of,
    second_name,
    source_of,
    updated,
)

IDS = Ids("b", "c1", "u1")
OWN = {"kubeocean.io/computing-cluster-id": "u1"}


def source(spec: Json, **metadata: object) -> Untyped:
    body = {"metadata": {"name": "logs", "uid": "u", **metadata}, "spec": spec}
    return decode_object(Untyped, encode(body), keep_raw=True)


def stdout(**detail: object) -> Json:
    return {"inputDetail": {"type": "container_stdout", "containerStdout": detail}, "x": 1}


def file(**detail: object) -> Json:
    return {"inputDetail": {"type": "container_file", "containerFile": detail}}


def copies(spec: Json, **metadata: object) -> dict[str, Json]:
    return forge(LogConfigContext(source(spec, **metadata), "mount", IDS))


def copied_spec(spec: Json) -> Json:
    (body,) = copies(spec).values()
    return body["spec"]


def test_a_namespace_is_selected_by_label() -> None:
    assert copied_spec(stdout(namespace="team", includeLabels={"a": "b"}, container="c")) == stdout(
        container="c",
        namespace="mount",
        includeLabels={"a": "b", "kubeocean.io/virtual-namespace": "team"} | OWN,
    )
    assert copied_spec(file(namespace="team", logPath="/var"))["inputDetail"]["containerFile"] == {
        "logPath": "/var",
        "namespace": "mount",
        "includeLabels": {"kubeocean.io/virtual-namespace": "team"} | OWN,
    }


def test_a_namespace_is_excluded_by_label() -> None:
    assert copied_spec(stdout(excludeNamespace="team", excludeLabels={"a": "b"})) == stdout(
        namespace="mount",
        includeLabels=OWN,
        excludeNamespace="",
        excludeLabels={"kubeocean.io/virtual-namespace": "team"},
    )


def test_the_workload_of_a_file_is_selected_by_labels() -> None:
    workload = {"kind": "deployment", "name": "web"}
    detail = copied_spec(file(workload=workload, includeLabels={"a": "b"}))["inputDetail"]
    assert detail["containerFile"] == {
        "namespace": "mount",
        "includeLabels": {
            "kubeocean.io/virtual-namespace": "default",
            "kubeocean.io/workload-name": "web",
            "kubeocean.io/workload-type": "deployment",
        }
        | OWN,
    }
    # A workload without a name selects nothing.
    assert "workload" in copied_spec(file(workload={"kind": "job"}))["inputDetail"]["containerFile"]


def test_a_spec_that_collects_nothing_is_copied_as_it_is() -> None:
    for spec in ({"kafkaDetail": {"topic": "t"}}, {"inputDetail": {}}):
        assert copied_spec(spec) == spec
        assert problem_of(source(spec)) == ""


def test_a_copy_never_selects_more_than_the_pods_of_its_computing_cluster() -> None:
    confined = {"namespace": "mount", "includeLabels": OWN}
    for detail in ({}, {"allContainers": True}, {"includeLabels": {"app": "x"}}):
        labels = detail.get("includeLabels") or {}
        assert isinstance(labels, dict)
        expected = detail | confined | {"includeLabels": labels | OWN}
        assert copied_spec(stdout(**detail)) == stdout(**expected)
        assert copied_spec(file(**detail)) == file(**expected)
    missing = {"inputDetail": {"type": "container_stdout"}}
    assert copied_spec(missing)["inputDetail"]["containerStdout"] == confined
    # Workloads of a file, and workloads without a name, would be those of the worker.
    for spec in (file(workloads=WORKLOADS), stdout(workloads=[{"namespace": "a"}])):
        (detail,) = (
            value
            for key, value in copied_spec(spec)["inputDetail"].items()
            if key.startswith("container")
        )
        assert detail == confined


def test_files_of_nodes_are_refused() -> None:
    host = {"inputDetail": {"type": "host_file", "hostFile": {"logPath": "/var"}}}
    assert problem_of(source(host)).startswith(
        "LogConfig logs: spec.inputDetail.type is host_file; only container_stdout and"
    )
    assert problem_of(source(stdout())) == problem_of(source(file())) == ""


def a_workload(namespace: str | None, kind: str, name: str) -> Json:
    return {"namespace": namespace, "kind": kind, "name": name}


WORKLOADS = [
    a_workload("b", "deployment", "x"),
    a_workload("a", "job", "j"),
    a_workload("a", "deployment", "y"),
    a_workload("a", "deployment", "z"),
]


def test_workloads_are_grouped_by_namespace_and_kind() -> None:
    made = copies(stdout(workloads=[*WORKLOADS, a_workload(None, "job", "lost")]))
    assert list(made) == [naming.log_config("logs", index) for index in range(3)]
    details = [body["spec"]["inputDetail"]["containerStdout"] for body in made.values()]
    assert [detail["includeLabels"]["kubeocean.io/workload-name"] for detail in details] == [
        "y,z",
        "j",
        "x",
    ]
    assert {detail["namespace"] for detail in details} == {"mount"}
    assert not any("workloads" in detail for detail in details)


def test_the_order_of_groups_does_not_depend_on_the_order_of_workloads() -> None:
    first = WORKLOADS[:3]
    made = [copies(stdout(workloads=list(order))) for order in permutations(first)]
    assert all(
        {name: body["spec"] for name, body in each.items()}
        == {name: body["spec"] for name, body in made[0].items()}
        for each in made
    )


def test_a_long_name_of_a_workload_becomes_the_label_of_its_pods() -> None:
    name = "w" * 70
    made = copies(stdout(workloads=[a_workload("a", "deployment", name)]))
    (body,) = made.values()
    labels = body["spec"]["inputDetail"]["containerStdout"]["includeLabels"]
    assert labels["kubeocean.io/workload-name"] == naming.label_value(name)


def test_the_labels_of_a_copy_prove_its_binding_and_its_source() -> None:
    (body,) = copies({}, labels={"team": "a", "kubeocean.io/odd": "x"}).values()
    labels = body["metadata"]["labels"]
    assert labels == {
        "team": "a",
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/cluster-binding": "b",
        "kubeocean.io/physical-cluster-id": "c1",
        "kubeocean.io/computing-cluster-id": "u1",
        "kubeocean.io/synced-by-c1": "true",
        "kubeocean.io/virtual-logconfig": "logs",
    }
    copy = decode_object(Untyped, encode(body), keep_raw=True)
    assert source_of(copy, DEFAULT).name == "logs"
    assert is_copy_of(copy, "logs", ids=IDS, domain=DEFAULT)
    assert not is_copy_of(copy, "logs", ids=Ids("b2", "c1", "u1"), domain=DEFAULT)
    assert not is_legacy_copy_of(copy, "logs", ids=Ids("b2", "c1", "u1"), domain=DEFAULT)


def legacy_copy(spec: Json, **labels: str) -> Untyped:
    """Return a copy as the earlier implementation wrote it."""
    metadata = {
        "name": naming.log_config("logs"),
        "resourceVersion": "7",
        "uid": "p",
        "labels": {
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/synced-by-c1": "true",
            "kubeocean.io/virtual-logconfig": "logs",
            **labels,
        },
        "annotations": {"kubeocean.io/virtual-name": "logs"},
    }
    body = {"metadata": metadata, "spec": spec, "status": {"code": "ok"}}
    return decode_object(Untyped, encode(body), keep_raw=True)


def test_a_legacy_copy_is_updated_in_place_and_only_if_it_differs() -> None:
    copy = legacy_copy({"clsDetail": {}})
    assert is_legacy_copy_of(copy, "logs", ids=IDS, domain=DEFAULT)
    assert not is_legacy_copy_of(copy, "logs", ids=Ids("b", "c2", "u1"), domain=DEFAULT)
    assert not is_legacy_copy_of(copy, "other", ids=IDS, domain=DEFAULT)
    (body,) = copies(stdout(namespace="team")).values()
    content = updated(copy, body, DEFAULT)
    assert content is not None
    assert content["metadata"]["resourceVersion"] == "7"
    assert content["spec"] == body["spec"]
    assert content["status"] == {"code": "ok"}
    again = decode_object(Untyped, encode(content), keep_raw=True)
    assert updated(again, body, DEFAULT) is None
    (labelled,) = copies(stdout(namespace="team"), labels={"team": "a"}).values()
    more = updated(again, labelled, DEFAULT)
    assert more is not None
    assert more["metadata"]["labels"]["team"] == "a"


def test_the_second_name_of_a_copy_differs_by_binding_and_computing_cluster() -> None:
    name = naming.log_config("logs")
    made = {second_name(name, Ids(b, "c1", u)) for b in ("b", "b2") for u in ("u1", "u2")}
    assert len(made) == 4
    assert name not in made
