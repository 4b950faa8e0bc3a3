"""The table of kinds that are replicated because pods refer to them.

A new kind is one module (how its copies are built, which references of a pod lead to it, which
other copies they refer to) and one line in this table. The controllers, the references of pods, the
names that the forge gets, the division of work between replicas, the sweep, `repair` and `doctor`
read the table. The rights to the kind are in `install.roles`, which does not import this table; a
test names a rule that is missing there.

Services and LogConfigs are replicated by their namespaces or selectors, not because a pod refers to
them: they have controllers of their own (`services`, `log_configs`).
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Key
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.claims import CLAIMS, ClaimRules
from kubeocean.syncer.replication.configmaps import CONFIG_MAPS
from kubeocean.syncer.replication.copy_forge import ReplicatedKind
from kubeocean.syncer.replication.referring_pods import Reference
from kubeocean.syncer.replication.replicator import Rules
from kubeocean.syncer.replication.secrets import SECRETS, SecretRules
from kubeocean.syncer.replication.volumes import VOLUMES, VolumeRules

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
