"""Mirrors: a Service of the computing cluster, as it is shown in the worker.

A mirror selects nothing; its EndpointSlices are copies of the original's, so traffic goes to the
very same pods, wherever they run. It has the original's ports, affinity and labels, and an address
of the worker. Node ports, load balancers and annotations stay behind: those are orders to programs
of the computing cluster. So do topology, nodes and references of endpoints, which name things that
the worker does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, ownership
from kubeocean.runtime.objects import Json, Key, Object, Untyped
from kubeocean.syncer.forge.metadata import Expected, merge, merge_patch
from kubeocean.syncer.serviceviews import (
    ENDPOINT_SLICES,
    EXTERNAL_NAME,
    HEADLESS,
    SERVICE_VIEWS,
    Service,
)

__all__ = [
    "Mirror",
    "forge_service",
    "forge_slice",
    "is_ours",
    "mirrored_slices",
    "must_be_replaced",
    "names",
    "service_changes",
    "slice_changes",
    "slice_name",
    "virtual_of",
]

_CLUSTER_IP: Final = "ClusterIP"
_FQDN: Final = "FQDN"  # of slices that hold names, which nothing routes
_ENDPOINT: Final = ("addresses", "conditions", "hostname")


@dataclass(frozen=True, slots=True)
class Mirror:
    """Everything that a mirror is made from."""

    service: Service  # the original
    name: str  # of the mirror
    namespace: str  # in the worker
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def names(service: Key, ids: Ids) -> tuple[str, str]:
    """What a mirror is called, and what where somebody else has that name."""
    whose = f"{ids.computing_id}/{ids.binding}"
    first = naming.physical_name(service.name, service.namespace)
    return first, naming.second_physical_name(service.name, service.namespace, uid=whose)


def slice_name(original: Key, mirror: Mirror) -> str:
    """What the copy of a slice is called; a mirror of the second name has slices of such."""
    first, _ = names(mirror.service.key, mirror.ids)
    if mirror.name == first:
        return naming.physical_name(original.name, original.namespace)
    return names(original, mirror.ids)[1]


def virtual_of(copy: Object, domain: Domain) -> Key:
    """What a mirror, or a copy of a slice, stands for."""
    said = copy.annotations
    return Key(said.get(domain.virtual_namespace, ""), said.get(domain.virtual_name, ""))


def is_ours(copy: Object, original: Key, *, ids: Ids, domain: Domain) -> bool:
    return bears_ids(copy, ids=ids, domain=domain) and virtual_of(copy, domain) == original


# Services


def forge_service(mirror: Mirror) -> Json:
    """The mirror as it is created."""
    want = _expected(mirror, mirror.service, dict(mirror.service.labels))
    spec = _spec(mirror.service)
    if mirror.service.spec.cluster_ip == HEADLESS:
        spec["clusterIP"] = HEADLESS
    return {
        "apiVersion": SERVICE_VIEWS.api_version,
        "kind": SERVICE_VIEWS.kind,
        "metadata": _metadata(mirror, mirror.name, want),
        "spec": spec,
    }


def must_be_replaced(there: Service, mirror: Mirror) -> bool:
    """Whether a mirror cannot become what it should be: no server changes these."""
    return _shape(there) != _shape(mirror.service)


def service_changes(there: Service, mirror: Mirror) -> Json:
    """The merge patch that makes the mirror what it should be; empty if it is."""
    want = _expected(mirror, mirror.service, dict(mirror.service.labels))
    metadata = _metadata_changes(there, want, mirror.domain)
    is_, should = _spec(there), _spec(mirror.service)
    spec = {
        key: should.get(key)
        for key in is_.keys() | should.keys()
        if is_.get(key) != should.get(key)
    }
    return _changes(metadata, {"spec": spec} if spec else {})


def _shape(service: Service) -> tuple[bool, bool]:
    return service.spec.type == EXTERNAL_NAME, service.spec.cluster_ip == HEADLESS


def _spec(service: Service) -> Json:
    """What a mirror shares with its original, as either of them has it."""
    spec = service.spec
    kept: Json = {
        "type": EXTERNAL_NAME if spec.type == EXTERNAL_NAME else _CLUSTER_IP,
        "ports": [_port(each) for each in map(msgspec.to_builtins, spec.ports or ())],
        "sessionAffinity": spec.session_affinity,
    }
    if spec.session_affinity_config:
        kept["sessionAffinityConfig"] = spec.session_affinity_config
    if spec.publish_not_ready_addresses:
        kept["publishNotReadyAddresses"] = True
    if spec.type == EXTERNAL_NAME:
        kept["externalName"] = spec.external_name
    return kept


def _port(port: Json) -> Json:
    return {"protocol": "TCP", "targetPort": port["port"]} | port


# EndpointSlices


def mirrored_slices(slices: list[Untyped]) -> list[Untyped]:
    """Those of a Service that lead somewhere, by name."""
    usable = (each for each in slices if not each.deleting)
    found = (each for each in usable if each.content().get("addressType") != _FQDN)
    return sorted(found, key=lambda each: each.name)


def forge_slice(original: Untyped, mirror: Mirror, mirror_uid: str) -> Json:
    """The copy of a slice as it is created."""
    want = _expected(mirror, original, _slice_labels(mirror))
    metadata = _metadata(mirror, slice_name(original.key, mirror), want)
    content = original.content()
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": metadata | {"ownerReferences": [_owner(mirror, mirror_uid)]},
        "addressType": content.get("addressType", ""),
        **_endpoints(content),
    }


def slice_changes(there: Untyped, original: Untyped, mirror: Mirror, mirror_uid: str) -> Json:
    """The merge patch that makes the copy what it should be; empty if it is."""
    want = _expected(mirror, original, _slice_labels(mirror))
    metadata = _metadata_changes(there, want, mirror.domain)
    owners = [owner.uid for owner in there.metadata.owner_references or ()]
    if owners != [mirror_uid]:
        metadata["ownerReferences"] = [_owner(mirror, mirror_uid)]
    is_, should = _endpoints(there.content()), _endpoints(original.content())
    return _changes(metadata, {key: should[key] for key in should if is_[key] != should[key]})


def _endpoints(content: Json) -> Json:
    endpoints = [
        {key: each[key] for key in _ENDPOINT if each.get(key) not in (None, {})}
        for each in content.get("endpoints") or ()
    ]
    return {"endpoints": endpoints, "ports": content.get("ports") or []}


def _slice_labels(mirror: Mirror) -> dict[str, str]:
    return {
        group.LABEL_SERVICE_NAME: mirror.name,
        group.LABEL_SLICE_MANAGED_BY: mirror.domain.syncer,
    }


def _owner(mirror: Mirror, uid: str) -> Json:
    return {
        "apiVersion": SERVICE_VIEWS.api_version,
        "kind": SERVICE_VIEWS.kind,
        "name": mirror.name,
        "uid": uid,
    }


# What both have


def _expected(mirror: Mirror, original: Object, labels: dict[str, str]) -> Expected:
    domain = mirror.domain
    theirs = {key: value for key, value in labels.items() if not domain.owns(key)}
    return Expected(
        labels=theirs | ownership(mirror.ids, domain),
        annotations={
            domain.virtual_namespace: original.namespace,
            domain.virtual_name: original.name,
            domain.virtual_uid: original.uid,
        },
    )


def _metadata(mirror: Mirror, name: str, want: Expected) -> Json:
    remembered = {mirror.domain.expected_metadata: want.encode()}
    return {
        "name": name,
        "namespace": mirror.namespace,
        "labels": dict(want.labels),
        "annotations": dict(want.annotations) | remembered,
    }


def _metadata_changes(there: Object, want: Expected, domain: Domain) -> Json:
    before = Expected.decode(there.annotations.get(domain.expected_metadata, ""))
    wanted = {**want.annotations, domain.expected_metadata: want.encode()}
    labels = merge_patch(there.labels, merge(there.labels, before.labels, want.labels))
    annotations = merge_patch(
        there.annotations, merge(there.annotations, before.annotations, wanted)
    )
    changed = {"labels": labels, "annotations": annotations}
    return {key: value for key, value in changed.items() if value}


def _changes(metadata: Json, rest: Json) -> Json:
    return ({"metadata": metadata} if metadata else {}) | rest
