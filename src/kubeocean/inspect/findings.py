"""Findings of status and doctor: one observation with its severity and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """The severity of a finding: error, warning or note."""

    ERROR = "error"  # something does not work
    WARNING = "warning"  # something may stop working, or is not as it should be
    NOTE = "note"  # good to know


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation of status or doctor about a subject, such as `binding berlin`.

    An empty subject is the whole installation. `check` names the check of doctor that made the
    finding.
    """

    severity: Severity
    subject: str
    message: str
    remedy: str = ""
    check: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message
