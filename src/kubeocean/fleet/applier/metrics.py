"""Metrics of the applier, with KubeFleet's names.

Labels hold the reasons of conditions; `Skipped` stands for a step that a pass did not reach, as for
the availability of a manifest that could not be applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubeocean.api.fleet.conditions import WorkCondition
from kubeocean.fleet.applier.report import Processed
from kubeocean.runtime.metrics import Metrics

__all__ = ["ApplierMetrics"]

_SKIPPED: Final = "Skipped"
_FOUND: Final = "Found"
_NONE: Final = "NotFound"


class ApplierMetrics:
    """Counts passes over Works and manifests, and measures the duration of passes."""

    def __init__(self, metrics: Metrics) -> None:
        steps = ["apply_status", "availability_status", "diff_reporting_status"]
        self._works = metrics.counter(
            "fleet_work_processing_requests_total", "Passes over Works, by their results", steps
        )
        self._manifests = metrics.counter(
            "fleet_manifest_processing_requests_total",
            "Manifests processed in passes, by their results",
            [*steps, "drift_detection_status", "diff_detection_status"],
        )
        self._seconds = metrics.histogram(
            "work_apply_time_seconds", "Seconds of a pass over a Work", ["name"]
        )

    def passed(
        self, name: str, status: Mapping[str, Any], processed: Iterable[Processed], seconds: float
    ) -> None:
        """Record a pass over the Work `name` that ended with `status` after `seconds`."""
        reasons = {each["type"]: each["reason"] for each in status["conditions"]}
        self._works.labels(
            reasons.get(WorkCondition.APPLIED, _SKIPPED),
            reasons.get(WorkCondition.AVAILABLE, _SKIPPED),
            reasons.get(WorkCondition.DIFF_REPORTED, _SKIPPED),
        ).inc()
        reports_diff = WorkCondition.DIFF_REPORTED in reasons
        for each in processed:
            result = each.result
            self._manifests.labels(
                _SKIPPED if reports_diff else str(result.reason),
                str(each.availability or _SKIPPED),
                str(result.reason) if reports_diff else _SKIPPED,
                _FOUND if result.drifts else _NONE,
                _FOUND if result.diffs else _NONE,
            ).inc()
        self._seconds.labels(name).observe(seconds)

    def forget(self, name: str) -> None:
        """Drop the metrics of a deleted Work."""
        self._seconds.remove(name)
