"""LogConfigs: what a log agent collects, said in the worker's terms.

In the worker all pods live in one namespace, and labels say which virtual namespace and workload
each belongs to. So what a LogConfig selects by namespace or workload is selected by those labels
there. One that names workloads becomes one for each namespace and kind among them, always in the
same order; names and everything else stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, ownership
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.syncer.forge.metadata import Expected, merge

__all__ = [
    "LOG_CONFIGS",
    "Copied",
    "changed",
    "forge",
    "is_ours",
    "is_takeable",
    "second_name",
    "virtual_of",
]

LOG_CONFIGS: Final = Resource(
    group.LOG_CONFIG_GROUP, group.LOG_CONFIG_VERSION, "logconfigs", "LogConfig", False, Untyped
)

_INPUTS: Final = {"container_stdout": "containerStdout", "container_file": "containerFile"}
_ANYWHERE: Final = "default"  # the namespace of a workload that names none
_NOT_COPIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Copied:
    """Everything that copies of a LogConfig are made from."""

    source: Untyped  # with its bytes
    mount_namespace: str
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def forge(copied: Copied) -> dict[str, Json]:
    """All copies as they are created, by name."""
    source = copied.source
    spec: Json = source.content().get("spec") or {}
    groups = _groups(spec)
    if not groups:
        name = naming.log_config(source.name)
        return {name: _copy(copied, name, _translated(spec, copied))}
    bodies = {}
    for index, each in enumerate(groups):
        name = naming.log_config(source.name, index)
        bodies[name] = _copy(copied, name, _for_group(spec, each, copied))
    return bodies


def second_name(name: str, ids: Ids) -> str:
    """What a copy is called where somebody else has its name."""
    return naming.second_physical_name(name, uid=f"{ids.computing_id}/{ids.binding}")


def changed(there: Untyped, want: Json, domain: Domain) -> Json | None:
    """What is there, made as it should be, to be written back; None if it is so already."""
    content = there.content()
    before = Expected.decode(there.annotations.get(domain.expected_metadata, ""))
    wanted = want["metadata"]
    labels = merge(there.labels, before.labels, wanted["labels"])
    annotations = merge(there.annotations, before.annotations, wanted["annotations"])
    same = labels == there.labels and annotations == there.annotations
    if same and content.get("spec") == want["spec"]:
        return None
    metadata = content["metadata"] | {"labels": labels, "annotations": annotations}
    return content | {"metadata": metadata, "spec": want["spec"]}


def virtual_of(copy: Object, domain: Domain) -> Key:
    """The LogConfig that a copy stands for."""
    said = copy.annotations.get(domain.virtual_name)
    return Key("", said or copy.labels.get(domain.virtual_log_config, ""))


def is_ours(copy: Object, source: str, *, ids: Ids, domain: Domain) -> bool:
    return bears_ids(copy, ids=ids, domain=domain) and virtual_of(copy, domain).name == source


def is_takeable(copy: Object, source: str, *, ids: Ids, domain: Domain) -> bool:
    """Whether the earlier implementation made it, for this worker and this LogConfig.

    It wrote no more than that: whoever asks must know that the LogConfig itself exists.
    """
    said = copy.labels
    marks = (domain.cluster_binding, domain.computing_cluster_id)
    return (
        said.get(domain.managed_by) == domain.product
        and said.get(domain.synced_by(ids.cluster_id)) == group.TRUE
        and virtual_of(copy, domain).name == source
        and not any(mark in said for mark in marks)
    )


# The copy


def _copy(copied: Copied, name: str, spec: Json) -> Json:
    source, ids, domain = copied.source, copied.ids, copied.domain
    want = Expected(
        labels={
            **{key: value for key, value in source.labels.items() if not domain.owns(key)},
            **ownership(ids, domain),
            domain.synced_by(ids.cluster_id): group.TRUE,
            domain.virtual_log_config: naming.label_value(source.name),
        },
        annotations={
            **{
                key: value
                for key, value in source.annotations.items()
                if not domain.owns(key) and key != _NOT_COPIED
            },
            domain.virtual_name: source.name,
            domain.virtual_uid: source.uid,
        },
    )
    remembered = {domain.expected_metadata: want.encode()}
    return {
        "apiVersion": LOG_CONFIGS.api_version,
        "kind": LOG_CONFIGS.kind,
        "metadata": {
            "name": name,
            "labels": dict(want.labels),
            "annotations": dict(want.annotations) | remembered,
        },
        "spec": spec,
    }


# What it selects


@dataclass(frozen=True, slots=True, order=True)
class _Group:
    namespace: str
    kind: str
    names: tuple[str, ...]


def _groups(spec: Json) -> list[_Group]:
    """The workloads that stdout is collected of, by namespace and kind, in order.

    One without a namespace, kind or name selects nothing, and is left out.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in _workloads(spec):
        namespace, kind, name = (each.get(key) for key in ("namespace", "kind", "name"))
        if namespace is not None and kind is not None and name is not None:
            found.setdefault((namespace, kind), []).append(name)
    # Names stay in the order in which they are written: it was never the map's.
    return sorted(_Group(*where, tuple(names)) for where, names in found.items())


def _workloads(spec: Json) -> Iterable[Json]:
    detail = spec.get("inputDetail") or {}
    if detail.get("type") != "container_stdout":
        return ()
    workloads: list[Json] = (detail.get("containerStdout") or {}).get("workloads") or []
    return workloads


def _for_group(spec: Json, each: _Group, copied: Copied) -> Json:
    domain = copied.domain
    labels = {
        domain.workload_type: each.kind,
        domain.virtual_namespace: each.namespace,
        domain.workload_name: ",".join(map(naming.label_value, each.names)),
    }
    changes = {"namespace": copied.mount_namespace, "includeLabels": labels, "workloads": None}
    return _with_input(spec, "containerStdout", changes)


def _translated(spec: Json, copied: Copied) -> Json:
    detail = spec.get("inputDetail") or {}
    part = _INPUTS.get(detail.get("type") or "", "")
    selected = detail.get(part) or {}
    changes = _selection(selected, copied) if selected and not selected.get("workloads") else {}
    return _with_input(spec, part, changes) if changes else spec


def _selection(selected: Json, copied: Copied) -> Json:
    """What changes in how pods are selected; nothing, if they are not by namespace."""
    domain, mount = copied.domain, copied.mount_namespace
    workload = selected.get("workload") or {}
    namespace = selected.get("namespace") or ""
    excluded = selected.get("excludeNamespace") or ""
    if workload.get("kind") and workload.get("name"):
        labels = {
            domain.virtual_namespace: namespace or _ANYWHERE,
            domain.workload_name: naming.label_value(workload["name"]),
            domain.workload_type: workload["kind"],
        }
        return {"namespace": mount, "includeLabels": labels, "workload": None}
    if namespace:
        labels = (selected.get("includeLabels") or {}) | {domain.virtual_namespace: namespace}
        return {"namespace": mount, "includeLabels": labels}
    if excluded:
        labels = {domain.virtual_namespace: excluded}  # both at once were never understood
        return {"namespace": mount, "excludeLabels": labels, "excludeNamespace": ""}
    return {}


def _with_input(spec: Json, part: str, changes: Mapping[str, object]) -> Json:
    """The spec with changes in one part of its input; None takes a field out."""
    detail = spec["inputDetail"]
    kept = {key: value for key, value in detail[part].items() if key not in changes}
    named = {key: value for key, value in changes.items() if value is not None}
    return spec | {"inputDetail": detail | {part: kept | named}}
