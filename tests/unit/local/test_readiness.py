"""Tests of the log lines that are shown when a program failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeocean.local.process import Process
from kubeocean.local.readiness import failure


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("", "X ended; the end of {log}:\n  (nothing)"),
        ("Error: no flag\nUsage:\n  a lot\n", "X ended; the end of {log}:\n  Error: no flag"),
        (
            "panic: disk: no space left on device\n\ngoroutine 1 [running]:\nmain.main()\n" * 9,
            "X ended: no space left on device; the end of {log}:\n"
            "  panic: disk: no space left on device\n  ",
        ),
    ],
)
def test_a_failure_shows_what_matters(tmp_path: Path, log: str, shown: str) -> None:
    process = Process("x", ["x"], log=tmp_path / "x.log")
    process.log.write_text(log)
    assert str(failure(process, "X ended")) == shown.format(log=process.log)
