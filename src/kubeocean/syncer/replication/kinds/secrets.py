"""Secrets that pods refer to, and Secrets that their volumes refer to.

A copy has the type of its source, unless the worker would act on that type. A token of a service
account becomes Opaque: the worker has no such account, and would delete the copy or put a token of
its own into it. A bootstrap token would admit machines to the worker, but only in its system
namespace; the syncer writes to its mount namespace alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from kubeocean.api import group
from kubeocean.api.volume_secrets import secrets_of
from kubeocean.runtime.objects import Json, Key, Resource
from kubeocean.syncer.pods import referenced_objects
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.copy_forge import Copy, PodReference, ReplicatedKind, Source
from kubeocean.syncer.replication.kinds.volumes import VOLUMES
from kubeocean.syncer.replication.referring_pods import VOLUME
from kubeocean.syncer.replication.replicator import Replicator, Rules
from kubeocean.syncer.replication.sources import REFERENCES

__all__ = ["SECRETS", "SecretRules", "translate"]

_OPAQUE: Final = "Opaque"
_ACCOUNT_TOKEN: Final = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token


def translate(content: Json) -> Json:
    """Return the content of the copy of a Secret."""
    kind = content.get("type") or _OPAQUE
    data = {key: content[key] for key in ("data", "immutable") if content.get(key)}
    return data | {"type": _OPAQUE if kind == _ACCOUNT_TOKEN else kind}


def _synced_fields(content: Json) -> Json:
    return {"/data": content.get("data") or {}, "/immutable": bool(content.get("immutable"))}


def _immutable_fields(content: Json) -> Json:
    return {"type": content.get("type")}


def _pod_references(refs: References) -> Iterator[PodReference]:
    for name, optional in refs.secrets.items():
        yield PodReference(name, optional)
    for name in refs.pull_secrets:
        if name not in refs.secrets:
            # A kubelet starts pods without the Secrets that they pull images with, too.
            yield PodReference(name, optional=True, best_effort=True)


SECRETS: Final = ReplicatedKind(
    sources=Resource("", "v1", "secrets", "Secret", True, Source),
    copies=Resource("", "v1", "secrets", "Secret", True, Copy),
    synced_fields=_synced_fields,
    immutable_fields=_immutable_fields,
    pod_references=_pod_references,
    translate=translate,
    env_source=referenced_objects.SECRET,
)


class SecretRules(Rules):
    """Rules for replicating Secrets, which pods and volumes refer to."""

    @property
    def _volumes(self) -> Replicator:
        return self.replicators[VOLUME]

    def synced(self) -> bool:
        return super().synced() and self._volumes.synced

    def needs_namespace(self, namespace: str) -> bool:
        return super().needs_namespace(namespace) or any(
            key.namespace == namespace and self._volumes.wanted(volume.key)
            for volume in self._volumes.sources.items()
            for key in self._secrets_of(volume)
        )

    def is_used(self, key: Key) -> bool:
        return super().is_used(key) or self._is_used_by_volume(key)

    def _is_used_by_volume(self, key: Key) -> bool:
        return any(self._volumes.wanted(volume.key) for volume in self._sources_of_volumes(key))

    def is_referenced(self, key: Key) -> bool:
        return any(self._volumes.copies_of(volume.key) for volume in self._sources_of_volumes(key))

    async def unused(self, key: Key, copy: Copy, since: float) -> bool:
        if self.clusters.domain.used_by_pv in copy.labels:
            labels = self._volumes.copies.scope.labels
            listing = await self.clusters.worker.list(VOLUMES.copies, labels=labels, keep_raw=True)
            used = (self._secrets_of(volume) for volume in listing.items)
            if any(copy.key in secrets for secrets in used):
                return False
        return await super().unused(key, copy, since)

    def extra_labels(self, key: Key) -> Mapping[str, str]:
        volumes = self._sources_of_volumes(key)
        return {self.clusters.domain.used_by_pv: group.TRUE} if volumes else {}

    def _sources_of_volumes(self, key: Key) -> list[Source]:
        """Return the virtual volumes that refer to a Secret."""
        volumes = self._volumes.sources.by(REFERENCES, str(key))
        return [volume for volume in volumes if key in self._secrets_of(volume)]

    def _secrets_of(self, volume: Source | Copy) -> Collection[Key]:
        return secrets_of(volume.content(), controllers=self.clusters.trusts_fully)
