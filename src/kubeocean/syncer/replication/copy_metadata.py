"""Labels and annotations of copies, which users and other programs may also set.

A copy has the metadata of its source, except Kubeocean's own labels and annotations there, and
metadata of the syncer. The annotation `expected-metadata` records the metadata that the syncer
wrote: metadata that others add to a copy stays, and metadata that the syncer wrote and does not
expect any more is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Object
from kubeocean.syncer.nodes.metadata import Expected, merge

__all__ = ["copied_annotations", "copied_labels", "merged", "recorded"]

# This annotation of kubectl repeats the whole content of a Secret.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def copied_labels(source: Object, domain: Domain) -> dict[str, str]:
    """Return the labels of a source that its copy has."""
    return {key: value for key, value in source.labels.items() if not domain.owns(key)}


def copied_annotations(
    source: Object, domain: Domain, *, dropped: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return the annotations of a source that its copy has."""
    return {
        key: value
        for key, value in source.annotations.items()
        if not domain.owns(key) and key != _LAST_APPLIED and key not in dropped
    }


def recorded(
    labels: Mapping[str, str], annotations: Mapping[str, str], domain: Domain
) -> dict[str, str]:
    """Return the annotations with `expected-metadata`, which records labels and annotations."""
    return {**annotations, domain.expected_metadata: Expected(labels, annotations).encode()}


def merged(
    copy: Object, labels: Mapping[str, str], annotations: Mapping[str, str], domain: Domain
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of a copy: those given, and those of other clients."""
    before = Expected.decode(copy.annotations.get(domain.expected_metadata, ""))
    return (
        merge(copy.labels, before.labels, labels),
        merge(copy.annotations, before.annotations, annotations),
    )
