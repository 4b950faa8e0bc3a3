"""PersistentVolumes: copies of the same storage, as the nodes of the worker mount it.

The copy of a volume belongs to the copy of its claim alone. Its reclaim policy is Retain, so that
the data stays whatever happens in the worker: deleting a copy deletes a reference to the data only.
Secrets that a copy names are copies in the mount namespace, and are named with that namespace: the
syncer writes to no other, and a namespace of the same name in the worker belongs to others. Secrets
of CSI controllers stay in the computing cluster, unless the worker is trusted fully. Node affinity
names the nodes of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kubeocean.api import group
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.volume_secrets import claim_of, copied_spec, secrets_of, with_secrets
from kubeocean.errors import NotFound
from kubeocean.runtime.objects import Json, Key, Resource
from kubeocean.syncer.pods.forge_context import Refused
from kubeocean.syncer.pods.plan import physical_node
from kubeocean.syncer.pods.pod_security import privileges_of, volume_problem
from kubeocean.syncer.replication.copy_forge import ClaimRef, Copy, ReplicatedKind, Source
from kubeocean.syncer.replication.missing import Missing
from kubeocean.syncer.replication.referring_pods import CLAIM, SECRET, VOLUME
from kubeocean.syncer.replication.replicator import VOLUME_NAME, Replicator, Rules
from kubeocean.syncer.replication.sources import REFERENCES

__all__ = ["VOLUMES", "VolumeRules", "rebind", "translate"]

_BOUND: Final = "Bound"
_RETAIN: Final = "Retain"
_NOT_COPIED: Final = ("claimRef", "persistentVolumeReclaimPolicy", "volumeAttributesClassName")
_MUTABLE: Final = ("accessModes", "capacity", "mountOptions", "nodeAffinity", "storageClassName")

_HostName: TypeAlias = Callable[[str], str | None]


def translate(
    content: Json,
    *,
    claim: Key,
    secrets: Mapping[Key, Key],
    host_name: _HostName,
    controllers: bool = False,
) -> Json:
    """Return the content of the copy of a volume.

    `claim` is the copy of its claim, `secrets` are the copies of its Secrets (`secrets_of`), and
    `host_name` returns the host name of the physical node behind a virtual node.
    """
    spec = copied_spec(content, controllers=controllers)
    kept = {key: value for key, value in spec.items() if key not in _NOT_COPIED}
    kept = with_secrets(kept, claim_of(content).namespace, lambda key, _: secrets[key])
    if kept.get("nodeAffinity"):
        kept["nodeAffinity"] = _affinity(kept["nodeAffinity"], host_name)
    policy = {"persistentVolumeReclaimPolicy": _RETAIN}
    return {"spec": kept | {"claimRef": _claim_ref(claim)} | policy}


def rebind(copy: Copy, claim: Key, *, uid: str) -> Json:
    """Return the claimRef to set, by JSON pointer, to bind a volume's copy to a claim's copy.

    Empty if the claimRef is right. `uid` is the UID of the claim's copy, empty if there is no copy.
    A volume that was bound to a claim with another UID is not bound again until its claimRef is
    replaced by one without a UID.
    """
    present = copy.spec.claim_ref or ClaimRef()
    if (present.namespace, present.name) == tuple(claim) and present.uid in ("", uid):
        return {}
    return {"/spec/claimRef": _claim_ref(claim)}


def _claim_ref(claim: Key) -> Json:
    return {"apiVersion": "v1", "kind": CLAIM, **claim._asdict()}


def _affinity(affinity: Json, host_name: _HostName) -> Json:
    """Return a volume's node affinity with physical nodes in place of virtual nodes.

    Other expressions stay.
    """
    required: Json = affinity.get("required") or {}
    terms = [
        term
        | {
            field: [_expression(each, host_name) for each in term[field]]
            for field in ("matchExpressions", "matchFields")
            if term.get(field)
        }
        for term in required.get("nodeSelectorTerms") or ()
    ]
    return affinity | {"required": required | {"nodeSelectorTerms": terms}}


def _expression(expression: Json, host_name: _HostName) -> Json:
    if expression.get("key") not in (group.LABEL_HOSTNAME, "metadata.name"):
        return expression
    values = [host_name(value) or value for value in expression.get("values") or ()]
    return expression | {"values": values}


def _synced_fields(content: Json) -> Json:
    spec: Json = content.get("spec") or {}
    return {
        "/spec/capacity": spec.get("capacity") or {},
        "/spec/mountOptions": spec.get("mountOptions") or [],
        "/spec/persistentVolumeReclaimPolicy": spec.get("persistentVolumeReclaimPolicy"),
    }


def _immutable_fields(content: Json) -> Json:
    spec: Json = content.get("spec") or {}
    others = (*_NOT_COPIED, *_MUTABLE, "volumeMode")
    return {key: value for key, value in spec.items() if key not in others}


def _source_references(content: Json) -> tuple[str, ...]:
    return tuple(map(str, secrets_of(content, controllers=True)))


def _copy_references(content: Json) -> tuple[Key, ...]:
    return tuple(secrets_of(content, controllers=True))


VOLUMES: Final = ReplicatedKind(
    sources=Resource("", "v1", "persistentvolumes", VOLUME, False, Source),
    copies=Resource("", "v1", "persistentvolumes", VOLUME, False, Copy),
    synced_fields=_synced_fields,
    immutable_fields=_immutable_fields,
    source_references=_source_references,
    copy_references=_copy_references,
    refers_to=SECRET,
    dropped_annotations=frozenset({"pv.kubernetes.io/bound-by-controller"}),
    lingers=False,  # the claim has lingered
)


class VolumeRules(Rules):
    """Rules for replicating PersistentVolumes, which claims refer to and which need Secrets."""

    @property
    def _claims(self) -> Replicator:
        return self.replicators[CLAIM]

    @property
    def _secrets(self) -> Replicator:
        return self.replicators[SECRET]

    def connect(self) -> None:
        self._secrets.on_change(lambda key: self.replicator.retry())
        self.replicator.copies.on_change(self._copy_changed)
        self.replicator.sources.on_change(self._source_changed)
        self.clusters.bindings.on_change(self._binding_changed)

    def synced(self) -> bool:
        vnodes = self.clusters.vnodes
        caches_synced = self._claims.synced and self._secrets.synced and vnodes.has_synced
        return super().synced() and caches_synced

    def is_used(self, key: Key) -> bool:
        claims = self._claims.sources.by(REFERENCES, key.name)
        return any(self._claims.wanted(claim.key) for claim in claims)

    async def unused(self, key: Key, copy: Copy, since: float) -> bool:
        """Whether the worker does not have the claim that a volume's copy is bound to."""
        ref = copy.spec.claim_ref
        return ref is None or await self._claim_uid(ref) == ""

    def is_referenced(self, key: Key) -> bool:
        """Whether the claim's copy exists, or the worker's binder still shows the volume bound."""
        return any(
            copy.status.phase == _BOUND or self._claims.copies.by(VOLUME_NAME, copy.name)
            for copy in self.replicator.copies_of(key)
        )

    async def translate(self, source: Source, name: str) -> Json | Missing:
        content = source.content()
        if (problem := self._problem(content)) is not None:
            message = f"{VOLUME} {source.name} is not copied: {problem}"
            return Missing(VOLUME, source.key, message)
        secrets: dict[Key, Key] = {}
        controllers = self.clusters.trusts_fully
        for key, optional in secrets_of(content, controllers=controllers).items():
            copy = await self._secrets.ensure(key)
            if isinstance(copy, Missing):
                if not optional:
                    message = f"{copy.message} (needed by {VOLUME} {source.name})"
                    return Missing(copy.kind, copy.key, message, copy.retry_s)
                copy = self._secrets.reserved_name(key)
            secrets[key] = Key(self.clusters.mount_namespace, copy)
        claim = self._claim_copy(content)
        return translate(
            content,
            claim=claim,
            secrets=secrets,
            host_name=self._host_name,
            controllers=controllers,
        )

    async def amend(self, source: Source, copy: Copy) -> Json | Missing:
        """Return the fields that bind a volume's copy to the copy of its claim.

        Missing if the volume's copy is bound to another claim that exists.
        """
        if self._is_bound(source, copy):
            return {}
        claim = self._claim_copy(source.content())
        present = copy.spec.claim_ref or ClaimRef()
        if present.uid and (uid := await self._claim_uid(present)):
            if (present.namespace, present.name) != tuple(claim):
                bound_to = f"{present.namespace}/{present.name}"
                message = f"{copy.name} of the worker is bound to {bound_to}"
                return Missing(VOLUME, source.key, message)
            return rebind(copy, claim, uid=uid)
        return rebind(copy, claim, uid="")

    async def report(self, source: Source, copy: Copy) -> None:
        await self.replicator.report_phase(source, copy)

    def fits(self, source: Source, copy: Copy) -> bool:
        return self._is_bound(source, copy) and self._problem(source.content()) is None

    def _is_bound(self, source: Source, copy: Copy) -> bool:
        """Whether a volume's copy belongs to the copy of its claim, as far as the caches show."""
        claim = self._claim_copy(source.content())
        claim_copy = self._claims.copies.get(claim)
        return not rebind(copy, claim, uid=claim_copy.uid if claim_copy else "")

    def _problem(self, content: Json) -> Refused | None:
        """Return why pods may not use a volume, by the binding's privileges; None if they may."""
        binding = self.clusters.binding  # without a binding no pod is created, either
        return None if binding is None else volume_problem(content, privileges_of(binding))

    def _claim_copy(self, content: Json) -> Key:
        """Return the key of the copy of a volume's claim."""
        name = self._claims.rules.copy_name(claim_of(content))
        return Key(self.clusters.mount_namespace, name)

    async def _claim_uid(self, ref: ClaimRef) -> str:
        """Read the UID of a claim of the worker; empty if there is no such claim."""
        resource = self._claims.definition.copies
        try:
            return (await self.clusters.worker.get(resource, ref.name, ref.namespace)).uid
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return ""

    def _host_name(self, name: str) -> str | None:
        """Return the host name of the physical node behind a virtual node."""
        vnode = self.clusters.vnodes.get(Key("", name))
        if vnode is None:
            return None
        name = physical_node(vnode, self.clusters.ids, self.clusters.domain) or ""
        pnode = self.clusters.pnodes.get(Key("", name))
        return pnode.labels.get(group.LABEL_HOSTNAME, name) if pnode else name or None

    def _copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if old is not None and new is None:
            self._check_secrets(self.replicator.sources.get(self.replicator.source_of(old)))

    def _source_changed(self, old: Source | None, new: Source | None) -> None:
        if new is None:
            self._check_secrets(old)

    def _check_secrets(self, volume: Source | None) -> None:
        for key in secrets_of(volume.content(), controllers=True) if volume else ():
            self._secrets.check(key)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if privileges_of(old) != privileges_of(new):
            self.replicator.retry()
