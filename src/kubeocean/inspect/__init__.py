"""Read-only views of all clusters of an installation: status, top, explain and doctor.

Each view is a pure function of a snapshot, which a reader takes. The package imports a module when
one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.inspect.doctor.diagnosis import Diagnosis, diagnose
    from kubeocean.inspect.doctor.reading import DoctorReader
    from kubeocean.inspect.explain.binding import explain_binding
    from kubeocean.inspect.explain.node import explain_node
    from kubeocean.inspect.explain.pod import explain_pod
    from kubeocean.inspect.explain.reading import ExplainReader
    from kubeocean.inspect.explain.report import Explanation
    from kubeocean.inspect.findings import Finding, Severity
    from kubeocean.inspect.snapshot import NotRead, Snapshot, WorkerSnapshot
    from kubeocean.inspect.status.build import installation_view
    from kubeocean.inspect.status.model import InstallationView
    from kubeocean.inspect.status.reading import StatusReader
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "doctor.diagnosis": ("Diagnosis", "diagnose"),
            "doctor.reading": ("DoctorReader",),
            "explain.binding": ("explain_binding",),
            "explain.node": ("explain_node",),
            "explain.pod": ("explain_pod",),
            "explain.reading": ("ExplainReader",),
            "explain.report": ("Explanation",),
            "findings": ("Finding", "Severity"),
            "snapshot": ("NotRead", "Snapshot", "WorkerSnapshot"),
            "status.build": ("installation_view",),
            "status.model": ("InstallationView",),
            "status.reading": ("StatusReader",),
        },
    )

__all__ = [
    "Diagnosis",
    "DoctorReader",
    "ExplainReader",
    "Explanation",
    "Finding",
    "InstallationView",
    "NotRead",
    "Severity",
    "Snapshot",
    "StatusReader",
    "WorkerSnapshot",
    "diagnose",
    "explain_binding",
    "explain_node",
    "explain_pod",
    "installation_view",
]
