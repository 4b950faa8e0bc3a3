"""Tests of the view that stays: a frame for each change, and none because time has passed."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from kubeocean.cli import _live_view
from kubeocean.cli._live_view import keep_showing
from kubeocean.cli._output import OutputFormat
from kubeocean.errors import Unreachable
from kubeocean.inspect.snapshot import Snapshot
from kubeocean.inspect.status.build import installation_view
from kubeocean.inspect.status.model import InstallationView
from kubeocean.runtime.clock import VirtualClock
from support.objects import NOW, a_binding, a_node


class Reads:
    """Reads these snapshots one after the other, and the last one again and again."""

    def __init__(self, clock: VirtualClock, *snapshots: Snapshot | Exception) -> None:
        self._clock = clock
        self._snapshots: Iterator[Snapshot | Exception] = iter(snapshots)
        self._last = snapshots[-1]

    async def look(self) -> InstallationView:
        self._last = next(self._snapshots, self._last)
        if isinstance(self._last, Exception):
            raise self._last
        return installation_view(replace(self._last, at=self._clock.now()))


HEALTHY = Snapshot(at=NOW, bindings=(a_binding(),), nodes=(a_node(),), usage={})
UNREADY = Snapshot(at=NOW, bindings=(a_binding(),), nodes=(a_node(ready="False"),), usage={})


async def watched(output: OutputFormat, *snapshots: Snapshot | Exception) -> None:
    clock = VirtualClock()
    reads = Reads(clock, *snapshots)
    showing = asyncio.create_task(keep_showing(reads.look, output, interval_s=2.0, clock=clock))
    try:
        await clock.advance(2.0 * (len(snapshots) + 3))
        assert not showing.done() or showing.result()
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def test_a_frame_is_printed_when_the_view_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await watched(OutputFormat.TEXT, HEALTHY, HEALTHY, UNREADY, UNREADY, HEALTHY)
    out = capsys.readouterr().out
    frames = out.split("\n\n2026-")
    assert len(frames) == 3
    assert frames[0].startswith("2026-01-01 00:00:00 UTC\nCLUSTER ")
    assert [frame.strip().splitlines()[-1].split(":")[0] for frame in frames] == [
        "healthy",
        "not healthy",
        "healthy",
    ]


async def test_documents_follow_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    await watched(OutputFormat.YAML, HEALTHY, UNREADY)
    healthy = [each["health"]["healthy"] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert healthy == [True, False]
    await watched(OutputFormat.JSON, HEALTHY, UNREADY)
    decoder, text, healthy = json.JSONDecoder(), capsys.readouterr().out, []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        healthy.append(document["health"]["healthy"])
        text = text.lstrip()[end:]
    assert healthy == [True, False]


async def test_a_read_that_fails_is_reported_once_and_followed_by_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = Unreachable("could not list nodes: refused")
    await watched(OutputFormat.TEXT, HEALTHY, gone, gone, HEALTHY)
    seen = capsys.readouterr()
    assert seen.err == "error: could not list nodes: refused\n"
    assert seen.out.count("healthy:") == 2


async def test_a_live_page_fits_the_terminal_and_shows_a_failed_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=90, height=24)
    monkeypatch.setattr(_live_view, "on_terminal", lambda: True)
    monkeypatch.setattr(_live_view, "console", lambda: screen)
    nodes = tuple(a_node(f"n{number:03}") for number in range(60))
    many = Snapshot(at=NOW, bindings=(a_binding(),), nodes=nodes, usage={})
    await watched(OutputFormat.TEXT, many, Unreachable("could not list nodes: refused"))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert "healthy: 1 cluster, 60 of 60 nodes Ready" in shown
    assert "50 more" in shown
    assert "cannot be read now: could not list nodes: refused" in shown


async def test_a_first_read_that_fails_ends_the_view() -> None:
    with pytest.raises(Unreachable):
        await watched(OutputFormat.TEXT, Unreachable("refused"))
