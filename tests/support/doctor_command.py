"""Runs `kubeocean doctor` and other commands as processes."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kubeocean.runtime.objects import Json

__all__ = ["Doctor", "output_of", "run_command"]


@dataclass(frozen=True)
class Doctor:
    """The command `kubeocean doctor`, for one computing cluster."""

    kubeconfig: Path

    async def __call__(self, *words: str) -> tuple[int, Json, str]:
        """Return the exit code, the document and stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kubeocean", "doctor", *words),
            *("--kubeconfig", os.fspath(self.kubeconfig), "-o", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
        )
        out, err = await process.communicate()
        document: Json = msgspec.json.decode(out) if out else {}
        return process.returncode or 0, document, err.decode()

    async def finds(self, check: str, text: str, *words: str) -> None:
        """Assert that a check has a finding with this text, and that the exit code is 3."""
        code, document, err = await self(*words)
        messages = [each["message"] for each in document["findings"] if each["check"] == check]
        assert any(text in each for each in messages), (document, err)
        assert code == 3


async def run_command(*words: str) -> int:
    """Run a command of ours; return its exit code."""
    return (await output_of(*words))[0]


async def output_of(*words: str) -> tuple[int, str, str]:
    """Run a command of ours; return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kubeocean", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
