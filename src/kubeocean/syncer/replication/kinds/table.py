"""The table of kinds that are replicated because pods refer to them, each with its rules."""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Key
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.copy_forge import ReplicatedKind
from kubeocean.syncer.replication.kinds.claims import CLAIMS, ClaimRules
from kubeocean.syncer.replication.kinds.configmaps import CONFIG_MAPS
from kubeocean.syncer.replication.kinds.secrets import SECRETS, SecretRules
from kubeocean.syncer.replication.kinds.volumes import VOLUMES, VolumeRules
from kubeocean.syncer.replication.referring_pods import Reference
from kubeocean.syncer.replication.replicator import Rules

__all__ = ["KIND_NAMES", "REPLICATED_KINDS", "references_of"]

REPLICATED_KINDS: Final[tuple[tuple[ReplicatedKind, type[Rules]], ...]] = (
    (CONFIG_MAPS, Rules),
    (SECRETS, SecretRules),
    (CLAIMS, ClaimRules),
    (VOLUMES, VolumeRules),
)

KIND_NAMES: Final = tuple(kind.name for kind, _ in REPLICATED_KINDS)


def references_of(refs: References, namespace: str) -> frozenset[Reference]:
    """Return all sources that a pod refers to."""
    return frozenset(
        (kind.name, Key(namespace, reference.name))
        for kind, _ in REPLICATED_KINDS
        for reference in kind.pod_references(refs)
    )
