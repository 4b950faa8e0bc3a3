"""A view that stays: a frame when something has changed, and none because time has passed."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
import yaml
from rich.console import Console

from kubeocean.cli import watching
from kubeocean.cli.presenting import Style
from kubeocean.cli.watching import keep_showing
from kubeocean.errors import Unreachable
from kubeocean.runtime.clock import VirtualClock
from kubeocean.view.clusters import ocean_view
from kubeocean.view.facts import Facts
from kubeocean.view.model import OceanView
from seascapes import a_binding, a_node


class Views:
    """What is seen, look by look; the last one stays."""

    def __init__(self, clock: VirtualClock, *seen: Facts | Exception) -> None:
        self._clock = clock
        self._seen: Iterator[Facts | Exception] = iter(seen)
        self._last = seen[-1]

    async def look(self) -> OceanView:
        self._last = next(self._seen, self._last)
        if isinstance(self._last, Exception):
            raise self._last
        return ocean_view(self._last, now=self._clock.now())


WELL = Facts(bindings=(a_binding(),), nodes=(a_node(),), uses={})
ILL = Facts(bindings=(a_binding(),), nodes=(a_node(ready="False"),), uses={})


async def watched(style: Style, *seen: Facts | Exception) -> None:
    clock = VirtualClock()
    views = Views(clock, *seen)
    showing = asyncio.create_task(keep_showing(views.look, style, interval_s=2.0, clock=clock))
    try:
        await clock.advance(2.0 * (len(seen) + 3))
        assert not showing.done() or showing.result()
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def test_a_frame_is_printed_when_something_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await watched(Style.TEXT, WELL, WELL, ILL, ILL, WELL)
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
    await watched(Style.YAML, WELL, ILL)
    said = [each["health"]["healthy"] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert said == [True, False]
    await watched(Style.JSON, WELL, ILL)
    decoder, text, said = json.JSONDecoder(), capsys.readouterr().out, []
    while text.strip():
        found, end = decoder.raw_decode(text.lstrip())
        said.append(found["health"]["healthy"])
        text = text.lstrip()[end:]
    assert said == [True, False]


async def test_a_look_that_fails_is_said_once_and_followed_by_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = Unreachable("could not list nodes: refused")
    await watched(Style.TEXT, WELL, gone, gone, WELL)
    seen = capsys.readouterr()
    assert seen.err == "error: could not list nodes: refused\n"
    assert seen.out.count("healthy:") == 2


async def test_a_live_page_fits_the_terminal_and_says_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=90, height=24)
    monkeypatch.setattr(watching, "on_terminal", lambda: True)
    monkeypatch.setattr(watching, "console", lambda: screen)
    nodes = tuple(a_node(f"n{number:03}") for number in range(60))
    many = Facts(bindings=(a_binding(),), nodes=nodes, uses={})
    await watched(Style.TEXT, many, Unreachable("could not list nodes: refused"))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert "healthy: 1 cluster, 60 of 60 nodes Ready" in shown
    assert "50 more" in shown
    assert "cannot be read now: could not list nodes: refused" in shown


async def test_a_first_look_that_fails_is_the_end() -> None:
    with pytest.raises(Unreachable):
        await watched(Style.TEXT, Unreachable("refused"))
