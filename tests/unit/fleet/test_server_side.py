"""Whether a server-side apply would change something, decided from the object alone."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.fleet.applier.server_side import is_in_effect
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
