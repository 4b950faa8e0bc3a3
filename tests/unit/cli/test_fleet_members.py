"""The taint of a cordon: added once, removed alone."""

from __future__ import annotations

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.cli.fleet_members import cordoned, uncordoned
from support.fleet_objects import member

CORDON = {"key": "cordon-key", "value": "cordon-value", "effect": "NoSchedule"}
OTHER = ClusterTaint("gpu", "yes")


def test_a_cordon_is_one_taint_more() -> None:
    assert cordoned(member()) == [CORDON]
    assert cordoned(member(taints=(OTHER,))) == [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        CORDON,
    ]
    assert cordoned(member(taints=(ClusterTaint("cordon-key", "cordon-value"),))) is None


def test_uncordon_removes_that_taint_only() -> None:
    both = member(taints=(ClusterTaint("cordon-key", "cordon-value"), OTHER))
    assert uncordoned(both) == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert uncordoned(member(taints=(OTHER,))) is None
    other_value = member(taints=(ClusterTaint("cordon-key", "x"),))
    assert uncordoned(other_value) is None
