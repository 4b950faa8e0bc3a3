"""Findings: what is wrong, where, how badly, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Json

__all__ = ["Diagnosis", "Finding", "Severity", "document", "few", "page"]

_NAMED: Final = 5


class Severity(StrEnum):
    """Whether something does not work, or may not for long, or is not as it should be."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found. `check` is its name, `about` what it is about."""

    check: str
    severity: Severity
    about: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found by these checks; `unread` is what could not be looked at."""

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        return sum(each.severity is Severity.ERROR for each in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    def healthy(self, *, strict: bool) -> bool:
        """Whether nothing is wrong; if strict, not even a little."""
        return not self.errors and not (strict and self.warnings)


def document(diagnosis: Diagnosis, *, strict: bool = False) -> Json:
    """The same, for programs."""
    return {
        "healthy": diagnosis.healthy(strict=strict),
        "errors": diagnosis.errors,
        "warnings": diagnosis.warnings,
        "findings": [
            {
                "check": each.check,
                "severity": str(each.severity),
                "about": each.about,
                "message": each.message,
                "remedy": each.remedy,
            }
            for each in diagnosis.findings
        ],
        "checks": list(diagnosis.checks),
        "notRead": list(diagnosis.unread),
    }


def page(diagnosis: Diagnosis) -> Iterator[str]:
    """The same, for people, line by line."""
    for each in sorted(diagnosis.findings, key=lambda each: each.severity):
        yield f"{each.severity:<8} {each.check}: {each.about}: {each.message}"
        if each.remedy:
            yield f"         -> {each.remedy}"
    for what in diagnosis.unread:
        yield f"not read {what}"
    checks = f"{len(diagnosis.checks)} checks"
    if not diagnosis.findings:
        yield f"{checks}: nothing is wrong"
    else:
        errors = counted(diagnosis.errors, "error")
        yield f"{checks}: {errors}, {counted(diagnosis.warnings, 'warning')}"


def few(names: tuple[str, ...]) -> str:
    """The first of them, and how many there are besides."""
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more
