"""The diagnosis of doctor: all checks on one snapshot, and their findings as page and document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kubeocean.inspect.doctor import binding_checks, computing_checks, fleet_checks
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.snapshot import MissingPart, Snapshot
from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Json

__all__ = ["Diagnosis", "diagnose", "document", "page"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of all checks of doctor that were made.

    `not_made` are the names of checks that need a part which could not be read; `unread` are the
    failed reads, with the reasons.
    """

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    not_made: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        return sum(each.severity is Severity.ERROR for each in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    def healthy(self, *, strict: bool) -> bool | None:
        """Whether there are no errors and, if `strict`, no warnings; None if reads failed."""
        if self.errors or (strict and self.warnings):
            return False
        return None if self.not_made or self.unread else True


def diagnose(snapshot: Snapshot) -> Diagnosis:
    """Make all checks of the computing cluster, of its fleet if it has one, and of each worker."""
    checks = {name: check(snapshot) for name, check in computing_checks.CHECKS.items()}
    if (fleet := snapshot.fleet) is not None:
        for name, check_fleet in fleet_checks.CHECKS.items():
            checks[name] = check_fleet(fleet, snapshot.at)
    for worker in snapshot.workers.values():
        for name, examine in binding_checks.CHECKS.items():
            checks[f"{name} of {worker.name}"] = examine(worker, snapshot)
    findings: list[Finding] = []
    made: list[str] = []
    not_made: list[str] = []
    for name, check in checks.items():
        (made if _make(check, findings) else not_made).append(name)
    unread = tuple(map(str, snapshot.unread))
    return Diagnosis(tuple(findings), tuple(made), tuple(not_made), unread)


def _make(check: Iterator[Finding], findings: list[Finding]) -> bool:
    """Run a check and add its findings to `findings`; False if a part was not read.

    Findings that the check made before it needed that part are kept.
    """
    try:
        for finding in check:
            findings.append(finding)  # noqa: PERF402 (extend would drop them on an exception)
    except MissingPart:
        return False
    return True


def document(diagnosis: Diagnosis, *, strict: bool = False) -> Json:
    """Return the diagnosis as a JSON document for programs."""
    return {
        "healthy": diagnosis.healthy(strict=strict),
        "errors": diagnosis.errors,
        "warnings": diagnosis.warnings,
        "findings": [
            {
                "check": each.check,
                "severity": str(each.severity),
                "about": each.subject,
                "message": each.message,
                "remedy": each.remedy,
            }
            for each in diagnosis.findings
        ],
        "checks": list(diagnosis.checks),
        "checksNotMade": list(diagnosis.not_made),
        "notRead": list(diagnosis.unread),
    }


def page(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis for people, line by line."""
    for each in sorted(diagnosis.findings, key=lambda each: each.severity):
        yield f"{each.severity:<8} {each.check}: {each.subject}: {each.message}"
        if each.remedy:
            yield f"         -> {each.remedy}"
    for part in diagnosis.unread:
        yield f"not read {part}"
    for name in diagnosis.not_made:
        yield f"not made {name}"
    made = len(diagnosis.checks)
    checks = f"{made} of {made + len(diagnosis.not_made)} checks made"
    if diagnosis.findings:
        errors = counted(diagnosis.errors, "error")
        yield f"{checks}: {errors}, {counted(diagnosis.warnings, 'warning')}"
    elif diagnosis.healthy(strict=True):
        yield f"{checks}: nothing is wrong"
    else:
        yield f"{checks}: no findings, but not everything could be read"
