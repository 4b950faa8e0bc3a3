"""Tests of the manager's metrics."""

from __future__ import annotations

from kubeocean.api.bindings import BindingStatus, ClusterBinding
from kubeocean.manager.metrics import count
from kubeocean.runtime.objects import Meta


def test_each_status_has_a_count() -> None:
    bindings = [
        ClusterBinding(),
        ClusterBinding(status=BindingStatus(phase="Ready")),
        ClusterBinding(status=BindingStatus(phase="Ready")),
        ClusterBinding(
            metadata=Meta(deletion_timestamp="2026-01-01T00:00:00Z"),
            status=BindingStatus(phase="Ready"),
        ),
    ]
    assert dict(count(bindings)) == {
        ("Deleting",): 1,
        ("Pending",): 1,
        ("Ready",): 2,
        ("Failed",): 0,
    }
