"""Metadata of a physical pod: the virtual pod's, and whose it is.

What the virtual pod said when its metadata was last carried down is remembered in the annotation
`expected-metadata` (base64 of JSON with labels and annotations, as every earlier version wrote it),
and what was wanted of the spec in `expected-spec`. So a change above is told from a change that
somebody made below, and only the former is carried on.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.metadata import Expected, merge, merge_patch
from kubeocean.syncer.forge.podcontext import Context, Refused, Workload

__all__ = [
    "digest",
    "expected",
    "forge_metadata",
    "metadata_changes",
    "recorded",
    "remember",
    "wanted",
    "workload_of",
]

_MOST_ANNOTATION_BYTES: Final = 256 * 1024  # that a server accepts, keys and values together
_POD: Final = Workload("pod")

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_record = msgspec.json.Decoder(dict[str, str]).decode


def forge_metadata(pod: Json, context: Context, record: Mapping[str, str]) -> Json:
    """The metadata that a physical pod is created with; `record` is what is wanted of its spec."""
    want = wanted(pod, context)
    annotations = {**want.annotations, **remember(record, context.domain)}
    return {
        "name": context.name,
        "namespace": context.namespace,
        "labels": dict(want.labels),
        "annotations": _remembering(pod, context.domain, annotations),
    }


def metadata_changes(pod: Json, ppod: Json, context: Context, record: Mapping[str, str]) -> Json:
    """The merge patch of an existing physical pod's metadata; empty if it is as it should be."""
    domain, want, meta = context.domain, wanted(pod, context), ppod["metadata"]
    labels_now: Mapping[str, str] = meta.get("labels") or {}
    annotations_now: Mapping[str, str] = meta.get("annotations") or {}
    before = Expected.decode(annotations_now.get(domain.expected_metadata, ""))

    labels = merge_patch(labels_now, merge(labels_now, before.labels, want.labels))
    then = merge(annotations_now, before.annotations, want.annotations)
    then.pop(domain.expected_metadata, None)
    if recorded(ppod, domain) != record:
        then |= remember(record, domain)
    then = _remembering(pod, domain, then)
    spelled = annotations_now.get(domain.expected_metadata)
    if spelled is not None and Expected.decode(then[domain.expected_metadata]) == before:
        then[domain.expected_metadata] = spelled  # an earlier implementation's words for the same
    annotations = merge_patch(annotations_now, then)
    change = {"labels": labels, "annotations": annotations}
    return {key: value for key, value in change.items() if value}


def wanted(pod: Json, context: Context) -> Expected:
    """The labels and annotations that a physical pod should have, besides what it remembers."""
    domain, meta, theirs = context.domain, pod["metadata"], expected(pod, context.domain)
    workload = context.workload or workload_of(pod)
    labels = {
        **theirs.labels,
        domain.managed_by: domain.product,
        domain.virtual_namespace: meta["namespace"],
        domain.workload_type: naming.label_value(workload.type),
    }
    if workload.name:
        labels[domain.workload_name] = naming.label_value(workload.name)
    annotations = {
        **theirs.annotations,
        domain.virtual_pod_namespace: meta["namespace"],
        domain.virtual_pod_name: meta["name"],
        domain.virtual_pod_uid: meta["uid"],
        domain.virtual_node_name: context.vnode,
    }
    if account := pod["spec"].get("serviceAccountName"):
        annotations[domain.service_account] = account
    return Expected(labels | dict(context.ownership), annotations)


def expected(pod: Json, domain: Domain) -> Expected:
    """What of a virtual pod's metadata is carried down: all but what is said of it above alone."""
    meta = pod["metadata"]
    above = {
        domain.physical_pod_namespace,
        domain.physical_pod_name,
        domain.physical_pod_uid,
        domain.last_sync_time,
        domain.expected_metadata,
        domain.expected_spec,
    }
    annotations = {
        key: value
        for key, value in (meta.get("annotations") or {}).items()
        # A pod that says it mirrors a file of its kubelet would be removed by the worker's.
        if key not in above and not key.startswith(group.ANNOTATIONS_OF_KUBELETS)
    }
    return Expected(dict(meta.get("labels") or {}), annotations)


def recorded(ppod: Json, domain: Domain) -> dict[str, str] | None:
    """What a physical pod remembers of what was wanted of its spec; none if it was never told."""
    text = (ppod["metadata"].get("annotations") or {}).get(domain.expected_spec, "")
    try:
        return _decode_record(text)
    except msgspec.DecodeError:
        return None


def remember(record: Mapping[str, str], domain: Domain) -> dict[str, str]:
    """The annotation that `recorded` reads."""
    return {domain.expected_spec: _encode(record).decode()}


def workload_of(pod: Json) -> Workload:
    """What a pod is a part of, by its first owner.

    The ReplicaSet of a Deployment has the Deployment's name and a hash that its pods are labelled
    with: nobody has to be asked, and it does not matter if the ReplicaSet is gone.
    """
    meta = pod["metadata"]
    owners: list[Json] = meta.get("ownerReferences") or []
    if not owners:
        return _POD
    kind, name = owners[0]["kind"], owners[0]["name"]
    template = (meta.get("labels") or {}).get(group.LABEL_TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return Workload("deployment", name.removesuffix(f"-{template}"))
    return Workload(kind.lower(), name)


def digest(part: object) -> str:
    """Equal for equal parts of a spec, whatever the order of their keys."""
    return hashlib.sha256(_encode(part)).hexdigest()[:16]


def _remembering(pod: Json, domain: Domain, annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations with what the virtual pod says now; refused where they have no room for it."""
    said = expected(pod, domain)
    short = Expected(said.labels, dict.fromkeys(said.annotations, ""))
    # To know what was ours the keys are enough; so are they where values would not fit twice.
    for told in (said, short):
        then = {**annotations, domain.expected_metadata: _spelled(told)}
        if (
            sum(len(k.encode()) + len(v.encode()) for k, v in then.items())
            <= _MOST_ANNOTATION_BYTES
        ):
            return then
    message = f"together with ours they have over {_MOST_ANNOTATION_BYTES} bytes"
    raise Refused("metadata.annotations", message)


def _spelled(said: Expected) -> str:
    told = {"labels": said.labels, "annotations": said.annotations}
    return base64.b64encode(_encode(told)).decode()
