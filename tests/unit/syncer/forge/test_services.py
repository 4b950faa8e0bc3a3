"""Mirrors of Services: what they share with the originals, and what makes them change."""

from __future__ import annotations

import msgspec

from kubeocean.api.ownership import Ids
from kubeocean.runtime.codec import decode_object, encode
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.syncer.forge.services import (
    Mirror,
    forge_service,
    forge_slice,
    is_ours,
    mirrored_slices,
    must_be_replaced,
    names,
    service_changes,
    slice_changes,
    slice_name,
)
from kubeocean.syncer.serviceviews import Service, lean

IDS = Ids("b", "c1", "u1")


def a_service(**spec: object) -> Service:
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
    return decode_object(Service, encode(body), keep_raw=False)


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


def mirror_of(service: Service, name: str = "") -> Mirror:
    return Mirror(service, name or names(service.key, IDS)[0], "mount", IDS)


def as_server_has_it(body: Json, **spec: object) -> Service:
    body = body | {"spec": body["spec"] | spec}
    body["metadata"] = body["metadata"] | {"uid": "m", "resourceVersion": "1"}
    return decode_object(Service, encode(body), keep_raw=True)


def test_a_mirror_selects_nothing_and_has_the_ports() -> None:
    body = forge_service(mirror_of(lean(a_service())))
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


def test_headless_services_and_aliases_stay_what_they_are() -> None:
    assert forge_service(mirror_of(a_service(clusterIP="None")))["spec"]["clusterIP"] == "None"
    alias = a_service(type="ExternalName", externalName="example.com", clusterIP="", ports=None)
    spec = forge_service(mirror_of(alias))["spec"]
    assert (spec["type"], spec["externalName"], spec["ports"]) == (
        "ExternalName",
        "example.com",
        [],
    )
    balanced = forge_service(mirror_of(a_service(type="LoadBalancer")))["spec"]
    assert balanced["type"] == "ClusterIP"


def test_what_a_server_made_of_a_mirror_needs_no_change() -> None:
    for original in (
        a_service(),
        a_service(clusterIP="None"),
        a_service(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"x": 1}}),
        a_service(publishNotReadyAddresses=True),
    ):
        mirror = mirror_of(original)
        body = forge_service(mirror)
        address = body["spec"].get("clusterIP", "10.9.9.9")
        there = as_server_has_it(body, clusterIP=address, internalTrafficPolicy="Cluster")
        assert service_changes(there, mirror) == {}
        assert not must_be_replaced(there, mirror)
        assert is_ours(there, original.key, ids=IDS, domain=mirror.domain)


def test_only_what_differs_is_changed() -> None:
    there = as_server_has_it(forge_service(mirror_of(a_service())), clusterIP="10.9.9.9")
    fewer = a_service(ports=[{"port": 81, "protocol": "TCP", "targetPort": 81}])
    assert service_changes(there, mirror_of(fewer)) == {
        "spec": {"ports": [{"port": 81, "protocol": "TCP", "targetPort": 81}]}
    }
    sticky = a_service(sessionAffinity="ClientIP", publishNotReadyAddresses=True)
    assert service_changes(there, mirror_of(sticky))["spec"] == {
        "sessionAffinity": "ClientIP",
        "publishNotReadyAddresses": True,
    }


def test_labels_of_others_stay_and_ours_follow() -> None:
    body = forge_service(mirror_of(a_service()))
    body["metadata"]["labels"] = body["metadata"]["labels"] | {"injected": "yes"}
    there = as_server_has_it(body, clusterIP="10.9.9.9")
    assert service_changes(there, mirror_of(a_service())) == {}
    meta = msgspec.structs.replace(a_service().metadata, labels={"tier": "front"})
    moved = msgspec.structs.replace(a_service(), metadata=meta)
    labels = service_changes(there, mirror_of(moved))["metadata"]["labels"]
    assert labels == {"app": None, "tier": "front"}


def test_what_no_server_changes_is_made_anew() -> None:
    there = as_server_has_it(forge_service(mirror_of(a_service())), clusterIP="10.9.9.9")
    assert must_be_replaced(there, mirror_of(a_service(clusterIP="None")))
    assert must_be_replaced(there, mirror_of(a_service(type="ExternalName", clusterIP="")))


def test_endpoints_lose_what_the_worker_does_not_have() -> None:
    mirror = mirror_of(a_service())
    body = forge_slice(a_slice(), mirror, "m")
    assert body["endpoints"] == [
        {
            "addresses": ["10.1.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
        }
    ]
    assert body["ports"] == [{"name": "", "port": 8080, "protocol": "TCP"}]
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == mirror.name
    assert body["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == (
        "kubeocean-syncer"
    )
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["m"]
    there = decode_object(Untyped, encode(body), keep_raw=True)
    assert slice_changes(there, a_slice(), mirror, "m") == {}
    gone = a_slice(endpoints=[])
    assert slice_changes(there, gone, mirror, "m") == {"endpoints": []}
    assert "ownerReferences" in slice_changes(there, a_slice(), mirror, "n")["metadata"]


def test_slices_of_names_are_left_out() -> None:
    assert mirrored_slices([a_slice(addressType="FQDN"), a_slice()]) == [a_slice()]


def test_a_second_name_is_nobody_elses() -> None:
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
    by_first = slice_name(key, mirror_of(a_service()))
    assert by_first != slice_name(key, mirror_of(a_service(), second))
