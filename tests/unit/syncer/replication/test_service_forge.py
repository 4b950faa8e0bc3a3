"""Copies of Services: which fields they share with their sources, and when they change."""

from __future__ import annotations

import msgspec

from kubeocean.api.ownership import Ids
from kubeocean.runtime.objects import Json, Key, Untyped, decode_object, encode
from kubeocean.syncer.replication.service_forge import (
    ServiceContext,
    ServiceView,
    forge_service,
    forge_slice,
    must_be_replaced,
    names,
    replicated_slices,
    service_changes,
    slice_changes,
    slice_name,
    without_annotations,
)
from kubeocean.syncer.replication.store import is_copy_of

IDS = Ids("b", "c1", "u1")


def a_service(**spec: object) -> ServiceView:
    body: Json = {
        "metadata": {
            "name": "web",
            "namespace": "team",
            "uid": "u",
            "labels": {"app": "web", "kubeocean.io/x": "y"},
            "annotations": {"big": "x" * 100},
        },
        "spec": {
            "clusterIP": "10.0.0.1",
            "selector": {"app": "web"},
            "ports": [
                {"port": 80, "protocol": "TCP", "targetPort": "http", "nodePort": 30000},
                {"port": 53, "protocol": "UDP", "targetPort": 53, "name": "dns"},
            ],
            "sessionAffinity": "None",
            **spec,
        },
    }
    return decode_object(ServiceView, encode(body), keep_raw=False)


def a_slice(**content: object) -> Untyped:
    body: Json = {
        "metadata": {"name": "web-abc", "namespace": "team", "uid": "s"},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.1.0.1"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": "vnode-x",
                "zone": "z",
                "targetRef": {"kind": "Pod", "name": "p"},
                "hints": {"forZones": [{"name": "z"}]},
            }
        ],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        **content,
    }
    return decode_object(Untyped, encode(body), keep_raw=True)


def context_of(service: ServiceView, name: str = "") -> ServiceContext:
    return ServiceContext(service, name or names(service.key, IDS)[0], "mount", IDS)


def stored(body: Json, **spec: object) -> ServiceView:
    body = body | {"spec": body["spec"] | spec}
    body["metadata"] = body["metadata"] | {"uid": "m", "resourceVersion": "1"}
    return decode_object(ServiceView, encode(body), keep_raw=True)


def test_the_copy_of_a_service_has_its_ports_and_no_selector() -> None:
    body = forge_service(context_of(without_annotations(a_service())))
    assert body["spec"] == {
        "type": "ClusterIP",
        "ports": [
            {"port": 80, "protocol": "TCP", "targetPort": "http"},
            {"port": 53, "protocol": "UDP", "targetPort": 53, "name": "dns"},
        ],
        "sessionAffinity": "None",
    }
    labels, annotations = body["metadata"]["labels"], body["metadata"]["annotations"]
    assert labels["app"] == "web"
    assert labels["kubeocean.io/cluster-binding"] == "b"
    assert labels["kubeocean.io/computing-cluster-id"] == "u1"
    assert "kubeocean.io/x" not in labels
    assert annotations["kubeocean.io/virtual-name"] == "web"
    assert annotations["kubeocean.io/virtual-namespace"] == "team"
    assert annotations["kubeocean.io/virtual-uid"] == "u"
    assert "big" not in annotations


def test_copies_of_headless_and_external_name_services_have_the_same_type() -> None:
    assert forge_service(context_of(a_service(clusterIP="None")))["spec"]["clusterIP"] == "None"
    alias = a_service(type="ExternalName", externalName="example.com", clusterIP="", ports=None)
    spec = forge_service(context_of(alias))["spec"]
    assert (spec["type"], spec["externalName"], spec["ports"]) == (
        "ExternalName",
        "example.com",
        [],
    )
    balanced = forge_service(context_of(a_service(type="LoadBalancer")))["spec"]
    assert balanced["type"] == "ClusterIP"


def test_a_copy_that_was_created_needs_no_change() -> None:
    for source in (
        a_service(),
        a_service(clusterIP="None"),
        a_service(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"x": 1}}),
        a_service(publishNotReadyAddresses=True),
    ):
        context = context_of(source)
        body = forge_service(context)
        address = body["spec"].get("clusterIP", "10.9.9.9")
        copy = stored(body, clusterIP=address, internalTrafficPolicy="Cluster")
        assert service_changes(copy, context) == {}
        assert not must_be_replaced(copy, context)
        assert is_copy_of(copy, source.key, ids=IDS, domain=context.domain)


def test_a_change_contains_the_fields_that_differ() -> None:
    copy = stored(forge_service(context_of(a_service())), clusterIP="10.9.9.9")
    fewer = a_service(ports=[{"port": 81, "protocol": "TCP", "targetPort": 81}])
    assert service_changes(copy, context_of(fewer)) == {
        "spec": {"ports": [{"port": 81, "protocol": "TCP", "targetPort": 81}]}
    }
    sticky = a_service(sessionAffinity="ClientIP", publishNotReadyAddresses=True)
    assert service_changes(copy, context_of(sticky))["spec"] == {
        "sessionAffinity": "ClientIP",
        "publishNotReadyAddresses": True,
    }


def test_labels_of_others_stay_and_labels_of_the_source_follow() -> None:
    body = forge_service(context_of(a_service()))
    body["metadata"]["labels"] = body["metadata"]["labels"] | {"injected": "yes"}
    copy = stored(body, clusterIP="10.9.9.9")
    assert service_changes(copy, context_of(a_service())) == {}
    meta = msgspec.structs.replace(a_service().metadata, labels={"tier": "front"})
    moved = msgspec.structs.replace(a_service(), metadata=meta)
    labels = service_changes(copy, context_of(moved))["metadata"]["labels"]
    assert labels == {"app": None, "tier": "front"}


def test_a_copy_that_differs_in_immutable_fields_is_replaced() -> None:
    copy = stored(forge_service(context_of(a_service())), clusterIP="10.9.9.9")
    assert must_be_replaced(copy, context_of(a_service(clusterIP="None")))
    assert must_be_replaced(copy, context_of(a_service(type="ExternalName", clusterIP="")))


def test_copied_endpoints_have_no_nodes_zones_or_references() -> None:
    context = context_of(a_service())
    body = forge_slice(a_slice(), context, "m")
    assert body["endpoints"] == [
        {
            "addresses": ["10.1.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
        }
    ]
    assert body["ports"] == [{"name": "", "port": 8080, "protocol": "TCP"}]
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == context.name
    assert body["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == (
        "kubeocean-syncer"
    )
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["m"]
    copy = decode_object(Untyped, encode(body), keep_raw=True)
    assert slice_changes(copy, a_slice(), context, "m") == {}
    gone = a_slice(endpoints=[])
    assert slice_changes(copy, gone, context, "m") == {"endpoints": []}
    assert "ownerReferences" in slice_changes(copy, a_slice(), context, "n")["metadata"]


def test_slices_of_dns_names_are_not_replicated() -> None:
    assert replicated_slices([a_slice(addressType="FQDN"), a_slice()]) == [a_slice()]


def test_the_second_name_of_a_copy_differs_by_binding_and_computing_cluster() -> None:
    first, second = names(Key("team", "web"), IDS)
    assert first.startswith("web-")
    assert names(Key("team", "web"), Ids("b2", "c2", "u1"))[0] == first
    seconds = {
        names(Key("team", "web"), Ids(binding, "c1", computing))[1]
        for binding in ("b", "b2")
        for computing in ("u1", "u2")
    }
    assert len(seconds) == 4
    assert second in seconds
    key = Key("team", "web-abc")
    by_first = slice_name(key, context_of(a_service()))
    assert by_first != slice_name(key, context_of(a_service(), second))
