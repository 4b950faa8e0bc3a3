"""Which Nodes are virtual nodes of a binding, also with wrong labels."""

from __future__ import annotations

import pytest

from kubeocean.api.expected import Expected
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import is_virtual_node_of
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Meta

OURS = {
    DEFAULT.managed_by: DEFAULT.product,
    DEFAULT.cluster_binding: "berlin",
    DEFAULT.physical_cluster_id: "prod",
}
THEIRS = OURS | {DEFAULT.cluster_binding: "paris", DEFAULT.physical_cluster_id: "prod-eu"}


def is_ours(
    name: str = "vnode-prod-n1",
    *,
    labels: dict[str, str] = OURS,
    remembered: dict[str, str] | None = OURS,
    finalizer: bool = True,
) -> bool:
    memory = Expected(remembered).encode() if remembered is not None else "nonsense"
    meta = Meta(
        name=name,
        labels=labels,
        annotations={DEFAULT.expected_metadata: memory},
        finalizers=[DEFAULT.finalizer_vnode] if finalizer else [],
    )
    return is_virtual_node_of(
        Node(metadata=meta), binding="berlin", cluster_id="prod", domain=DEFAULT
    )


def test_what_we_or_the_earlier_implementation_made_is_ours() -> None:
    assert is_ours()


@pytest.mark.parametrize("remembered", [OURS, None, {}])
def test_a_machine_is_never_ours(remembered: dict[str, str] | None) -> None:
    assert not is_ours("machine-7", remembered=remembered)
    assert not is_ours("machine-7", remembered=remembered, finalizer=False)


def test_a_node_of_another_binding_is_not_ours_by_labels() -> None:
    assert not is_ours("vnode-paris-n1", remembered=THEIRS)
    assert not is_ours("vnode-prod-eu-n1", remembered=THEIRS)


@pytest.mark.parametrize("labels", [{}, THEIRS])
def test_lost_or_forged_labels_do_not_matter_beside_what_is_remembered(
    labels: dict[str, str],
) -> None:
    assert is_ours(labels=labels)
    assert is_ours(labels=labels, finalizer=False)


def test_without_memory_finalizer_and_cluster_decide() -> None:
    assert is_ours(remembered=None)
    assert not is_ours(remembered=None, finalizer=False)
    assert not is_ours(remembered=None, labels={})
    assert not is_ours(remembered=None, labels=THEIRS)
    unbound = {DEFAULT.physical_cluster_id: "prod"}
    assert is_ours(remembered=None, labels=unbound)
    assert not is_ours(remembered=None, labels=unbound | {DEFAULT.cluster_binding: "paris"})
