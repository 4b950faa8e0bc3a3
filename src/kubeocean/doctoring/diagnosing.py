"""Diagnosing: all checks, on all facts."""

from __future__ import annotations

from collections.abc import Iterable

from kubeocean.doctoring import computing, wards
from kubeocean.doctoring.facts import Computing, Ward
from kubeocean.doctoring.findings import Diagnosis, Finding

__all__ = ["diagnose"]


def diagnose(above: Computing, below: Iterable[Ward], unread: Iterable[str] = ()) -> Diagnosis:
    """What is wrong with an installation."""
    findings: list[Finding] = []
    made = list(computing.CHECKS)
    for check in computing.CHECKS.values():
        findings += check(above)
    for ward in below:
        made += [f"{name} of {ward.binding.name}" for name in wards.CHECKS]
        for examine in wards.CHECKS.values():
            findings += examine(ward, above)
    return Diagnosis(tuple(findings), tuple(made), tuple(unread))
