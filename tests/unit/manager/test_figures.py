"""What the manager counts."""

from __future__ import annotations

from kubeocean.api.binding import BindingStatus, ClusterBinding
from kubeocean.manager.figures import count
from kubeocean.runtime.objects import Meta


def test_every_status_has_a_number() -> None:
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
