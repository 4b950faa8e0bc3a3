"""Doctors: `kubeocean doctor` as its users run it."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kubeocean.runtime.objects import Json

__all__ = ["Doctor", "run_command", "said_by"]


@dataclass(frozen=True)
class Doctor:
    """The command, for one computing cluster."""

    kubeconfig: Path

    async def __call__(self, *words: str) -> tuple[int, Json, str]:
        """Its exit code, what it found, and what else it said."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kubeocean", "doctor", *words),
            *("--kubeconfig", os.fspath(self.kubeconfig), "-o", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
        )
        out, err = await process.communicate()
        found: Json = msgspec.json.decode(out) if out else {}
        return process.returncode or 0, found, err.decode()

    async def finds(self, check: str, said: str, *words: str) -> None:
        """It finds this, and does not end well."""
        code, found, err = await self(*words)
        told = [each["message"] for each in found["findings"] if each["check"] == check]
        assert any(said in each for each in told), (found, err)
        assert code == 3


async def run_command(*words: str) -> int:
    """Any command of ours; its exit code."""
    return (await said_by(*words))[0]


async def said_by(*words: str) -> tuple[int, str, str]:
    """Any command of ours: its exit code, and what it said to whom."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kubeocean", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
