"""Replicates LogConfigs, the configuration of log agents that collect the logs of pods.

In the worker all pods are in one namespace, and labels name the virtual namespace and the workload
of each. So a LogConfig that selects by namespace or workload has a copy that selects by those
labels. A LogConfig that names workloads has one copy for each namespace and kind among them, always
in the same order. Every copy is confined to the mount namespace and to pods of this computing
cluster, whatever its source selects: the worker's other logs belong to its owner. Files of nodes
are refused for the same reason. All other fields are copied as they are.

LogConfigs are replicated only where both clusters serve the kind, which is checked at the start and
periodically; elsewhere nothing is watched. The key is a LogConfig of the computing cluster. Its
copies are updated in place, and are deleted with their source or when they are not needed any more;
before that the source is read from the server. The syncer never adds a finalizer to a source, and
removes the one that an earlier implementation added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.conditions import BindingEvent
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, bears_ids, ownership_labels
from kubeocean.errors import ApiError, Forbidden, Invalid, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Done, Outcome, Stuck
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.copy_metadata import (
    copied_annotations,
    copied_labels,
    merged,
    recorded,
)
from kubeocean.syncer.replication.loop import ReplicationLoop
from kubeocean.syncer.replication.on_demand_caches import Switched, SyncedCache, synced
from kubeocean.syncer.replication.store import CopyStore

__all__ = [
    "LOG_CONFIGS",
    "LogConfigContext",
    "LogConfigs",
    "forge",
    "is_copy_of",
    "is_legacy_copy_of",
    "problem_of",
    "second_name",
    "source_of",
    "updated",
]

LOG_CONFIGS: Final = Resource(
    group.LOG_CONFIG_GROUP, group.LOG_CONFIG_VERSION, "logconfigs", "LogConfig", False, Untyped
)

WORKERS: Final = 2
DISCOVER_EVERY_S: Final = 600.0
_PATH: Final = f"/apis/{LOG_CONFIGS.group}/{LOG_CONFIGS.version}"
_INPUTS: Final = {"container_stdout": "containerStdout", "container_file": "containerFile"}
_ANYWHERE: Final = "default"  # the namespace of a workload that names none

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogConfigContext:
    """Everything that the copies of a LogConfig are built from."""

    source: Untyped  # with its bytes
    mount_namespace: str
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def forge(context: LogConfigContext) -> dict[str, Json]:
    """Return the manifests of all copies of a LogConfig, by name."""
    source = context.source
    spec: Json = source.content().get("spec") or {}
    groups = _groups(spec)
    if not groups:
        name = naming.log_config(source.name)
        return {name: _copy(context, name, _translated(spec, context))}
    bodies = {}
    for index, each in enumerate(groups):
        name = naming.log_config(source.name, index)
        bodies[name] = _copy(context, name, _for_group(spec, each, context))
    return bodies


def problem_of(source: Untyped) -> str:
    """Return why a LogConfig is not copied; empty if it is."""
    spec: Json = source.content().get("spec") or {}
    kind = (spec.get("inputDetail") or {}).get("type") or ""
    if not kind or kind in _INPUTS:
        return ""
    return (
        f"LogConfig {source.name}: spec.inputDetail.type is {kind}; only"
        f" {' and '.join(_INPUTS)} are copied, because other logs of the worker are its owner's"
    )


def second_name(name: str, ids: Ids) -> str:
    """Return the name of a LogConfig's copy if a foreign object has the copy's first name."""
    return naming.second_physical_name(name, uid=f"{ids.computing_id}/{ids.binding}")


def updated(copy: Untyped, body: Json, domain: Domain) -> Json | None:
    """Return a copy with the content of `body`, to be written back; None if nothing differs."""
    content, metadata = copy.content(), body["metadata"]
    labels, annotations = merged(copy, metadata["labels"], metadata["annotations"], domain)
    same = labels == copy.labels and annotations == copy.annotations
    if same and content.get("spec") == body["spec"]:
        return None
    metadata = content["metadata"] | {"labels": labels, "annotations": annotations}
    return content | {"metadata": metadata, "spec": body["spec"]}


def source_of(copy: Object, domain: Domain) -> Key:
    """Return the LogConfig that a copy names as its source."""
    name = copy.annotations.get(domain.virtual_name)
    return Key("", name or copy.labels.get(domain.virtual_log_config, ""))


def is_copy_of(copy: Object, source: str, *, ids: Ids, domain: Domain) -> bool:
    """Whether the binding created an object as a copy of that LogConfig."""
    return bears_ids(copy, ids=ids, domain=domain) and source_of(copy, domain).name == source


def is_legacy_copy_of(copy: Object, source: str, *, ids: Ids, domain: Domain) -> bool:
    """Whether the earlier implementation created a copy for this worker and this LogConfig.

    The labels of such a copy prove no more than that: the caller must know that the LogConfig
    exists.
    """
    labels = copy.labels
    marks = (domain.cluster_binding, domain.computing_cluster_id)
    return (
        labels.get(domain.managed_by) == domain.product
        and labels.get(domain.synced_by(ids.cluster_id)) == group.TRUE
        and source_of(copy, domain).name == source
        and not any(mark in labels for mark in marks)
    )


def _copy(context: LogConfigContext, name: str, spec: Json) -> Json:
    source, ids, domain = context.source, context.ids, context.domain
    labels = {
        **copied_labels(source, domain),
        **ownership_labels(ids, domain),
        domain.synced_by(ids.cluster_id): group.TRUE,
        domain.virtual_log_config: naming.label_value(source.name),
    }
    annotations = {
        **copied_annotations(source, domain),
        domain.virtual_name: source.name,
        domain.virtual_uid: source.uid,
    }
    return {
        "apiVersion": LOG_CONFIGS.api_version,
        "kind": LOG_CONFIGS.kind,
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": recorded(labels, annotations, domain),
        },
        "spec": spec,
    }


# The selection of pods by a LogConfig


@dataclass(frozen=True, slots=True, order=True)
class _Group:
    """The workloads of one kind in one namespace."""

    namespace: str
    kind: str
    names: tuple[str, ...]


def _groups(spec: Json) -> list[_Group]:
    """Return the workloads whose stdout is collected, grouped and sorted by namespace and kind.

    A workload without a namespace, kind or name selects nothing, and is left out.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for each in _workloads(spec):
        namespace, kind, name = (each.get(key) for key in ("namespace", "kind", "name"))
        if namespace is not None and kind is not None and name is not None:
            groups.setdefault((namespace, kind), []).append(name)
    # Names stay in the order of the source: only the order of the groups was ever random.
    return sorted(_Group(*group, tuple(names)) for group, names in groups.items())


def _workloads(spec: Json) -> Iterable[Json]:
    detail = spec.get("inputDetail") or {}
    if detail.get("type") != "container_stdout":
        return ()
    workloads: list[Json] = (detail.get("containerStdout") or {}).get("workloads") or []
    return workloads


def _for_group(spec: Json, each: _Group, context: LogConfigContext) -> Json:
    domain = context.domain
    labels = {
        domain.workload_type: each.kind,
        domain.virtual_namespace: each.namespace,
        domain.workload_name: ",".join(map(naming.label_value, each.names)),
        **_own_pods(context),
    }
    changes = {"namespace": context.mount_namespace, "includeLabels": labels, "workloads": None}
    return _with_input(spec, "containerStdout", changes)


def _translated(spec: Json, context: LogConfigContext) -> Json:
    detail = spec.get("inputDetail") or {}
    part = _INPUTS.get(detail.get("type") or "", "")
    if not part:
        return spec  # collects nothing
    return _with_input(spec, part, _selection(detail.get(part) or {}, context))


def _own_pods(context: LogConfigContext) -> dict[str, str]:
    """Return the label that only pods of this computing cluster have."""
    computing_id = naming.label_value(context.ids.computing_id)
    return {context.domain.computing_cluster_id: computing_id}


def _selection(selected: Json, context: LogConfigContext) -> Json:
    """Return the changes to a LogConfig's selection of pods that confine its copy."""
    domain, mount = context.domain, context.mount_namespace
    workload = selected.get("workload") or {}
    namespace = selected.get("namespace") or ""
    excluded = selected.get("excludeNamespace") or ""
    if workload.get("kind") and workload.get("name"):
        labels = {
            domain.virtual_namespace: namespace or _ANYWHERE,
            domain.workload_name: naming.label_value(workload["name"]),
            domain.workload_type: workload["kind"],
        }
        labels |= _own_pods(context)
        return {"namespace": mount, "includeLabels": labels, "workload": None, "workloads": None}
    labels = (selected.get("includeLabels") or {}) | _own_pods(context)
    if namespace:
        labels |= {domain.virtual_namespace: namespace}
    confined: Json = {"namespace": mount, "includeLabels": labels, "workloads": None}
    if excluded and not namespace:
        # Other labels that the source excludes are dropped, as in the earlier implementation.
        confined |= {"excludeLabels": {domain.virtual_namespace: excluded}, "excludeNamespace": ""}
    return confined


def _with_input(spec: Json, part: str, changes: Mapping[str, object]) -> Json:
    """Return a LogConfig's spec with changes in one part of its input; None removes a field."""
    detail = spec["inputDetail"]
    selected = detail.get(part) or {}
    kept = {key: value for key, value in selected.items() if key not in changes}
    named = {key: value for key, value in changes.items() if value is not None}
    return spec | {"inputDetail": detail | {part: kept | named}}


# The controller


class LogConfigs(ReplicationLoop[Untyped, Untyped]):
    """Replicates the LogConfigs of the computing cluster, for one binding."""

    def __init__(self, clusters: Clusters) -> None:
        domain = clusters.domain
        sources = Informer(
            clusters.computing,
            LOG_CONFIGS,
            keep_raw=True,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        store = CopyStore(
            clusters,
            clusters.worker,
            LOG_CONFIGS,
            lambda copy: source_of(copy, domain),
            labels=f"{domain.managed_by}={domain.product},"
            f"{domain.synced_by(clusters.cluster_id)}={group.TRUE}",
            keep_raw=True,
        )
        super().__init__(clusters, "virtuallogconfig", sources, store, workers=WORKERS)
        self._switch = Switched(self.sources, self.copies)
        self.parts: tuple[Runnable, ...] = (self, self._switch, self.controller)
        clusters.bindings.on_change(self._binding_changed)
        self.follow(self.sources, lambda source: source.key)
        self.follow(self.copies, self.source_of)

    @property
    def on(self) -> bool:
        """Whether both clusters serve LogConfigs."""
        return self._switch.on

    def remaining(self) -> int:
        """Return how many copies of LogConfigs, of this binding, the cache shows."""
        return sum(self._is_ours(copy) for copy in self.copies.items())

    # Whether LogConfigs are replicated at all

    async def run(self) -> None:
        """Check periodically whether both clusters serve LogConfigs, until cancelled."""
        while True:
            served = await self._is_served()
            if served is not None and served != self.on:
                _log.info("Started copying LogConfigs" if served else "Stopped copying LogConfigs")
                self._switch.turn(served)
            await self.clusters.clock.sleep(DISCOVER_EVERY_S)

    async def _is_served(self) -> bool | None:
        """Whether both clusters serve LogConfigs; None if one of them does not answer."""
        try:
            clusters = (self.clusters.computing, self.clusters.worker)
            return all([await _serves(cluster) for cluster in clusters])
        except ApiError as error:
            _log.warning("Could not check whether both clusters serve LogConfigs", error=str(error))
            return None

    # The loop

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if old is None or new is None or old.deleting != new.deleting:
            self.resync()

    async def caught_up(self, key: Key) -> bool:
        caches: tuple[SyncedCache, ...] = (self.clusters.bindings, self.sources, self.copies)
        if not await synced(self.clusters.clock, caches):
            return False
        return await self._store.caught_up(key) and await self.sources.caught_up(key)

    async def reconcile(self, key: Key) -> Outcome:
        binding = self.clusters.binding
        if binding is None or not self.clusters.worker_health.answers or not self.on:
            return Done()  # the key is enqueued again when one of these changes
        source, copies = self.sources.get(key), self._store.of(key)
        try:
            if source is None or source.deleting or binding.deleting:
                return await self._ensure_deleted(key, source, copies)
            return await self._ensure(source, copies)
        except (Invalid, Forbidden) as error:
            return Stuck(BindingEvent.LOG_CONFIG_NOT_COPIED, str(error))

    async def _ensure(self, source: Untyped, copies: list[Untyped]) -> Outcome:
        clusters = self.clusters
        context = LogConfigContext(source, clusters.mount_namespace, clusters.ids, clusters.domain)
        known = {copy.name: copy for copy in copies if self._is_adoptable(copy, source.name)}
        if problem := problem_of(source):
            for copy in known.values():
                await self._store.delete(source.key, copy)
            return Stuck(BindingEvent.LOG_CONFIG_NOT_COPIED, problem)
        kept = set()
        for name, body in forge(context).items():
            written = await self._ensure_copy(name, body, known, source)
            if written is None:
                message = (
                    f"LogConfig {source.name}: {name} and the second name belong to another owner"
                )
                return Stuck(BindingEvent.LOG_CONFIG_NOT_COPIED, message)
            kept.add(written)
        for copy in known.values():
            if copy.name not in kept:
                await self._store.delete(source.key, copy)
        await self._remove_legacy_finalizer(source)
        return Done()

    async def _ensure_copy(
        self, name: str, body: Json, known: Mapping[str, Untyped], source: Untyped
    ) -> str | None:
        """Create or update one copy of a LogConfig; return its name, None if both are taken."""
        names = (name, second_name(name, self.clusters.ids))
        copy = next((known[each] for each in names if each in known), None)
        if copy is not None:
            await self._update(copy, body, source.key)
            return copy.name
        for each in names:
            named = body | {"metadata": body["metadata"] | {"name": each}}
            copy, created = await self._store.create_or_get(source.key, named)
            if created:
                return each
            if self._is_adoptable(copy, source.name):
                await self._update(copy, body, source.key)
                return each
        return None

    async def _update(self, copy: Untyped, body: Json, source: Key) -> None:
        replacement = updated(copy, body, self.clusters.domain)
        if replacement is not None:
            await self._store.replace(source, replacement)

    async def _ensure_deleted(
        self, key: Key, source: Untyped | None, copies: list[Untyped]
    ) -> Outcome:
        binding = self.clusters.binding
        binding_ends = binding is None or binding.deleting
        if source is None and not binding_ends and copies and await self._source_exists(key):
            return Done()  # the cache is behind
        for copy in copies:
            # The labels of the earlier implementation prove too little without the source.
            adoptable = source is not None and self._is_adoptable(copy, key.name)
            if adoptable or self._is_ours(copy):
                await self._store.delete(key, copy)
        if source is not None:
            await self._remove_legacy_finalizer(source)
        return Done()

    async def _remove_legacy_finalizer(self, source: Untyped) -> None:
        """Remove the finalizer of the earlier implementation from a LogConfig."""
        finalizers = source.metadata.finalizers or ()
        legacy = self.clusters.domain.finalizer_for(self.clusters.cluster_id)
        if legacy not in finalizers:
            return
        metadata: Json = {
            "uid": source.uid,
            "resourceVersion": source.resource_version,
            "finalizers": [each for each in finalizers if each != legacy],
        }
        with suppress(NotFound):
            patch = MergePatch({"metadata": metadata})
            written = await self.clusters.computing.patch(LOG_CONFIGS, source.name, patch)
            self.sources.wrote(written)

    async def _source_exists(self, key: Key) -> bool:
        """Whether the API server has a LogConfig that the cache does not show."""
        try:
            return not (await self.clusters.computing.get(LOG_CONFIGS, key.name)).deleting
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return False

    def _is_ours(self, copy: Untyped) -> bool:
        clusters = self.clusters
        return bears_ids(copy, ids=clusters.ids, domain=clusters.domain)

    def _is_adoptable(self, copy: Untyped, source: str) -> bool:
        ids, domain = self.clusters.ids, self.clusters.domain
        ours = is_copy_of(copy, source, ids=ids, domain=domain)
        return ours or is_legacy_copy_of(copy, source, ids=ids, domain=domain)


async def _serves(cluster: Client) -> bool:
    try:
        resources = await cluster.request_json("GET", _PATH)
    except NotFound:
        return False
    return any(each.get("name") == LOG_CONFIGS.plural for each in resources.get("resources") or ())
