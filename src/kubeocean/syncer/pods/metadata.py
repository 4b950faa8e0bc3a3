"""Metadata of pods: labels and annotations of a physical pod, and the part that a user sees.

A physical pod has the labels and annotations of its virtual pod, and those that name its virtual
pod. The virtual pod's metadata as last applied is recorded in the physical pod's annotation
`expected-metadata` (base64 of JSON with labels and annotations, as every version wrote it), and
digests of its spec in `expected-spec`. So a change by the user is distinguished from a change that
another program made in the worker, and only the former is applied.

In the other direction, annotations that programs of the worker put on a physical pod are shown on
the virtual pod, unless the user set the same key or a controller of the computing cluster acts on
it. Labels are not shown: they would select the Services and NetworkPolicies of a pod, and no
kubelet may set them either. From a worker that is trusted fully, all labels and annotations are
shown. The shown entries are recorded in the virtual pod's own `expected-metadata`, so that they
follow the physical pod and are not taken for the user's.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json, merge_patch
from kubeocean.syncer.nodes.foreign_metadata import is_informative_annotation
from kubeocean.syncer.nodes.metadata import Expected, merge
from kubeocean.syncer.pods.forge_context import Context, OwnerWorkload, Refused

__all__ = [
    "applied_metadata",
    "digest",
    "forge_metadata",
    "is_copied",
    "location",
    "metadata_changes",
    "physical_metadata",
    "recorded_spec",
    "shown_metadata",
    "spec_annotation",
    "users_own",
    "workload_of",
]

# Of annotations that a worker may show: with their record they stay below the limit of 256 KiB that
# an API server sets for all annotations of an object.
_SHOWN_BYTES: Final = 1 << 16
_MOST_ANNOTATION_BYTES: Final = 256 * 1024  # that a server accepts, keys and values together
_POD: Final = OwnerWorkload("pod")
_Texts: TypeAlias = Mapping[str, str]

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_record = msgspec.json.Decoder(dict[str, str]).decode


# The physical pod


def forge_metadata(pod: Json, context: Context, record: Mapping[str, str]) -> Json:
    """Return the metadata of a new physical pod; `record` are the digests of its spec."""
    metadata = physical_metadata(pod, context)
    annotations = {**metadata.annotations, **spec_annotation(record, context.domain)}
    return {
        "name": context.name,
        "namespace": context.namespace,
        "labels": dict(metadata.labels),
        "annotations": _with_expected(pod, context.domain, annotations),
    }


def metadata_changes(pod: Json, ppod: Json, context: Context, record: Mapping[str, str]) -> Json:
    """Return the merge patch of an existing physical pod's metadata; empty if nothing differs."""
    domain, target, meta = context.domain, physical_metadata(pod, context), ppod["metadata"]
    current_labels: Mapping[str, str] = meta.get("labels") or {}
    current: Mapping[str, str] = meta.get("annotations") or {}
    before = Expected.decode(current.get(domain.expected_metadata, ""))

    labels = merge_patch(current_labels, merge(current_labels, before.labels, target.labels))
    annotations = merge(current, before.annotations, target.annotations)
    annotations.pop(domain.expected_metadata, None)
    if recorded_spec(ppod, domain) != record:
        annotations |= spec_annotation(record, domain)
    annotations = _with_expected(pod, domain, annotations)
    encoded = current.get(domain.expected_metadata)
    if encoded is not None and Expected.decode(annotations[domain.expected_metadata]) == before:
        # An earlier version encoded the same metadata differently.
        annotations[domain.expected_metadata] = encoded
    change = {"labels": labels, "annotations": merge_patch(current, annotations)}
    return {key: value for key, value in change.items() if value}


def physical_metadata(pod: Json, context: Context) -> Expected:
    """Return the labels and annotations that a physical pod should have, without its records."""
    domain, meta, users = context.domain, pod["metadata"], applied_metadata(pod, context.domain)
    workload = context.workload or workload_of(pod)
    labels = {
        **users.labels,
        domain.managed_by: domain.product,
        domain.virtual_namespace: meta["namespace"],
        domain.workload_type: naming.label_value(workload.type),
    }
    if workload.name:
        labels[domain.workload_name] = naming.label_value(workload.name)
    annotations = {
        **users.annotations,
        domain.virtual_pod_namespace: meta["namespace"],
        domain.virtual_pod_name: meta["name"],
        domain.virtual_pod_uid: meta["uid"],
        domain.virtual_node_name: context.vnode,
    }
    if account := pod["spec"].get("serviceAccountName"):
        annotations[domain.service_account] = account
    return Expected(labels | dict(context.ownership_labels), annotations)


def applied_metadata(pod: Json, domain: Domain) -> Expected:
    """Return the labels and annotations of a virtual pod that are copied to its physical pod."""
    meta = pod["metadata"]
    virtual_only = {
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
        # The worker's kubelet would remove a pod that claims to mirror a file of its kubelet.
        if key not in virtual_only and not key.startswith(group.ANNOTATIONS_OF_KUBELETS)
    }
    return Expected(dict(meta.get("labels") or {}), annotations)


def recorded_spec(ppod: Json, domain: Domain) -> dict[str, str] | None:
    """Return the digests of the spec last applied to a physical pod; None if none are recorded."""
    text = (ppod["metadata"].get("annotations") or {}).get(domain.expected_spec, "")
    try:
        return _decode_record(text)
    except msgspec.DecodeError:
        return None


def spec_annotation(record: Mapping[str, str], domain: Domain) -> dict[str, str]:
    """Return the annotation with the digests of a spec, which `recorded_spec` reads."""
    return {domain.expected_spec: _encode(record).decode()}


def workload_of(pod: Json) -> OwnerWorkload:
    """Return the workload of a pod, by its first owner.

    The ReplicaSet of a Deployment has the Deployment's name and a hash that its pods are labelled
    with: the ReplicaSet need not be read, and may be gone.
    """
    meta = pod["metadata"]
    owners: list[Json] = meta.get("ownerReferences") or []
    if not owners:
        return _POD
    kind, name = owners[0]["kind"], owners[0]["name"]
    template = (meta.get("labels") or {}).get(group.LABEL_TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return OwnerWorkload("deployment", name.removesuffix(f"-{template}"))
    return OwnerWorkload(kind.lower(), name)


def digest(part: object) -> str:
    """Return a digest of a part of a spec, which does not depend on the order of keys."""
    return hashlib.sha256(_encode(part)).hexdigest()[:16]


def _with_expected(pod: Json, domain: Domain, annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations plus a record of the virtual metadata; raise Refused if too large."""
    full = applied_metadata(pod, domain)
    # The keys alone identify the applied entries, if the values do not fit a second time.
    keys_only = Expected(full.labels, dict.fromkeys(full.annotations, ""))
    for recorded in (full, keys_only):
        result = {**annotations, domain.expected_metadata: _encode_expected(recorded)}
        size = sum(len(k.encode()) + len(v.encode()) for k, v in result.items())
        if size <= _MOST_ANNOTATION_BYTES:
            return result
    message = f"with those that Kubeocean adds, they have more than {_MOST_ANNOTATION_BYTES} bytes"
    raise Refused("metadata.annotations", message)


def _encode_expected(metadata: Expected) -> str:
    document = {"labels": metadata.labels, "annotations": metadata.annotations}
    return base64.b64encode(_encode(document)).decode()


# The virtual pod


def shown_metadata(vpod: Json, ppod: Json, domain: Domain, *, trusts_fully: bool = False) -> Json:
    """Return the merge patch of a virtual pod's metadata.

    The patch sets the name of the physical pod, and labels and annotations that it shows.
    """
    virtual, physical = vpod["metadata"], ppod["metadata"]
    shown, applied = _recorded(virtual, domain), _recorded(physical, domain)
    labels = _foreign(_texts(physical, "labels"), applied.labels, domain)
    annotations = _foreign(_texts(physical, "annotations"), applied.annotations, domain)
    if not trusts_fully:
        labels = {}
        annotations = {k: v for k, v in annotations.items() if is_informative_annotation(k)}
    annotations = _fitting(annotations)
    visible = Expected(
        labels=_unless_users(labels, shown.labels, _texts(virtual, "labels")),
        annotations=_unless_users(annotations, shown.annotations, _texts(virtual, "annotations")),
    )
    ours = {
        domain.physical_pod_namespace: physical["namespace"],
        domain.physical_pod_name: physical["name"],
        domain.physical_pod_uid: physical["uid"],
    }
    if visible.labels or visible.annotations:
        ours[domain.expected_metadata] = visible.encode()
    users = users_own(vpod, domain)["metadata"]
    mark = {domain.managed_by: domain.product}
    target: dict[str, dict[str, str]] = {
        "labels": _texts(users, "labels") | dict(visible.labels) | mark,
        "annotations": _texts(users, "annotations") | dict(visible.annotations) | ours,
    }
    patches = {name: merge_patch(_texts(virtual, name), texts) for name, texts in target.items()}
    return {name: patch for name, patch in patches.items() if patch}


def _fitting(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's annotations that fit into `_SHOWN_BYTES`; the largest are omitted first.

    An API server would refuse the whole patch, with the status in it.
    """
    fitting: dict[str, str] = {}
    left = _SHOWN_BYTES
    for key, value in sorted(annotations.items(), key=lambda each: (len(each[1]), each[0])):
        left -= len(key.encode()) + len(value.encode())
        if left < 0:
            break
        fitting[key] = value
    return fitting


def location(metadata: Json, domain: Domain) -> Json:
    """Return the annotations in a patch by `shown_metadata` that name the physical pod."""
    annotations = metadata.get("annotations") or {}
    keys = (domain.physical_pod_namespace, domain.physical_pod_name, domain.physical_pod_uid)
    return {"annotations": {key: annotations[key] for key in keys if key in annotations}}


def users_own(vpod: Json, domain: Domain) -> Json:
    """Return a virtual pod as its user wrote it, without the entries of the physical pod."""
    meta: Json = vpod["metadata"]
    shown = _recorded(meta, domain)
    labels = dict(shown.labels) | {domain.managed_by: domain.product}
    own = {
        "labels": _without(_texts(meta, "labels"), labels),
        "annotations": _without(_texts(meta, "annotations"), shown.annotations),
    }
    own["annotations"].pop(domain.expected_metadata, None)
    return vpod | {"metadata": meta | own}


def is_copied(vpod: Json, domain: Domain) -> bool:
    """Whether a user wrote the name of a physical pod, in a manifest taken from another pod.

    The syncer writes that name through the status subresource, as no user does, and the API server
    records the subresource in the managed fields.
    """
    managed: list[Json] = vpod["metadata"].get("managedFields") or []
    field = f"f:{domain.physical_pod_uid}"
    by_status = (
        ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
        for entry in managed
        if entry.get("subresource") == "status"
    )
    return bool(managed) and not any(field in annotations for annotations in by_status)


def _recorded(meta: Json, domain: Domain) -> Expected:
    return Expected.decode(_texts(meta, "annotations").get(domain.expected_metadata, ""))


def _foreign(physical: _Texts, applied: _Texts, domain: Domain) -> dict[str, str]:
    """Return the labels or annotations of a physical pod that neither user nor syncer wrote."""
    return {k: v for k, v in physical.items() if k not in applied and not domain.owns(k)}


def _unless_users(physical: _Texts, shown: _Texts, virtual: _Texts) -> dict[str, str]:
    """Return the labels or annotations whose key the user did not set on the virtual pod."""
    return {k: v for k, v in physical.items() if k not in virtual or shown.get(k) == virtual[k]}


def _without(texts: _Texts, shown: _Texts) -> dict[str, str]:
    return {k: v for k, v in texts.items() if shown.get(k) != v}


def _texts(meta: Json, name: str) -> dict[str, str]:
    texts: dict[str, Any] = meta.get(name) or {}
    return texts
