"""Fields of the applier in an object, and whether a server-side apply would change something."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.fleet.applier.server_side import fields_as_applied, is_in_effect
from kubeocean.runtime.objects import Json

DESIRED: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "labels": {"a": "1"}},
    "spec": {"ports": [{"port": 80}], "type": "ClusterIP"},
}
FIELDS: Json = {
    "f:metadata": {"f:labels": {"f:a": {}}},
    "f:spec": {"f:ports": {'k:{"port":80}': {".": {}, "f:port": {}}}, "f:type": {}},
}


def live(fields: Json | None = FIELDS, manager: str = "work-api-agent", **changes: Any) -> Json:
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    metadata = {**DESIRED["metadata"], "uid": "u", "managedFields": [entry]}
    ports = [{"port": 80, "protocol": "TCP"}]
    spec = {**DESIRED["spec"], "ports": ports, "clusterIP": "10.0.0.1"}
    return {**DESIRED, "metadata": metadata, "spec": spec, **changes}


def test_an_object_that_has_what_we_applied_needs_no_apply() -> None:
    assert is_in_effect(DESIRED, live())


@pytest.mark.parametrize(
    "other",
    [
        live(manager="somebody"),
        live(fields=None, manager="somebody"),
        live(spec={"ports": [{"port": 81}], "type": "ClusterIP"}),
        live(spec={"ports": [{"port": 80}, {"port": 81}], "type": "ClusterIP"}),
        live(spec={"ports": [{"port": 80}]}),
        live(spec="text"),
        live({**FIELDS, "f:metadata": {"f:labels": {"f:a": {}, "f:removed": {}}}}),
        live({**FIELDS, "f:data": {}}),
        {**DESIRED, "metadata": {"managedFields": None}},
        {**DESIRED, "metadata": {"managedFields": [{}]}},
    ],
)
def test_any_doubt_asks_the_server(other: Json) -> None:
    assert not is_in_effect(DESIRED, other)


def test_fields_of_a_subresource_do_not_count() -> None:
    obj = live()
    entry = {"manager": "work-api-agent", "operation": "Apply", "subresource": "status"}
    obj["metadata"]["managedFields"].append({**entry, "fieldsV1": {"f:status": {}}})
    assert is_in_effect(DESIRED, obj)


def test_an_object_that_we_created_and_never_applied_is_told_by_its_values() -> None:
    obj = live({**FIELDS, "f:defaulted": {}})
    obj["metadata"]["managedFields"][0]["operation"] = "Update"
    assert is_in_effect(DESIRED, obj)
    assert not is_in_effect({**DESIRED, "spec": {"type": "NodePort"}}, obj)


def entry(operation: str, fields: Json, version: str = "v1", **more: str) -> Json:
    own = {"manager": "work-api-agent", "operation": operation, "apiVersion": version}
    return {**own, "fieldsV1": fields, **more}


def managed(*entries: Json) -> Json:
    return {**DESIRED, "metadata": {"managedFields": list(entries)}}


def test_fields_that_were_written_otherwise_become_applied_ones() -> None:
    created = entry("Update", {"f:spec": {"f:type": {}, "f:ports": {".": {}}}}, time="1")
    status = entry("Update", {"f:status": {}}, subresource="status")
    applied = entry("Apply", {"f:spec": {"f:ports": {'k:{"port":80}': {}}}}, time="2")
    assert fields_as_applied(managed(created, status, applied)) == [
        status,
        entry(
            "Apply",
            {"f:spec": {"f:type": {}, "f:ports": {".": {}, 'k:{"port":80}': {}}}},
            time="2",
        ),
    ]


def test_fields_of_another_version_of_the_api_get_no_manager() -> None:
    old = entry("Update", {"f:spec": {"f:old": {}}}, "v1beta1", time="1")
    new = entry("Update", {"f:spec": {"f:new": {}}}, "v1", time="2")
    assert fields_as_applied(managed(new, old)) == [
        entry("Apply", {"f:spec": {"f:new": {}}}, "v1", time="2")
    ]


@pytest.mark.parametrize("entries", [(), (entry("Apply", FIELDS),), ({"manager": "kubectl"},)])
def test_an_object_without_fields_that_were_written_otherwise_stays(
    entries: tuple[Json, ...],
) -> None:
    assert fields_as_applied(managed(*entries)) is None
