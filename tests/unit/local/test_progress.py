"""Progress: a log that moves, and does not drown."""

from __future__ import annotations

import io

import pytest

from kubeocean.local.progress import (
    PlainProgress,
    Silence,
    TerminalProgress,
    progress_on,
    readable_bytes,
)
from support.wait import until


async def test_lines_come_at_the_start_now_and_then_and_at_the_end() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, every_s=0.01)
    progress.note("hello")
    with progress.task("building", total=100, unit="packages") as task:
        assert lines == ["hello", "building …"]
        task.advance(7)
        task.say("linking")
        await until(lambda: len(lines) >= 3)
    assert lines[2].startswith("building: 0 s, 7 of about 100 packages, linking")
    assert lines[-1].startswith("building: done in ")
    count = len(lines)
    with pytest.raises(ValueError, match="x"), progress.task("failing"):
        raise ValueError("x")
    assert lines[count:] == ["failing …"]


async def test_who_gives_up_is_not_done() -> None:
    lines: list[str] = []
    with PlainProgress(lines.append).task("waiting") as task:
        task.give_up()
    assert lines[-1].startswith("waiting: not done after ")


async def test_bytes_are_shown_as_people_say_them() -> None:
    lines: list[str] = []
    with PlainProgress(lines.append, every_s=0.01).task("loading", unit="bytes") as task:
        task.expect(2_000_000)
        task.advance(1_500_000)
        await until(lambda: len(lines) >= 2)
    assert "1.5 MB of 2.0 MB" in lines[1]
    shown = [readable_bytes(n) for n in (0, 999, 1_000, 12_345_678, 5_000_000_000)]
    assert shown == ["0 B", "999 B", "1.0 kB", "12.3 MB", "5.0 GB"]


async def test_silence_accepts_everything() -> None:
    silence = Silence()
    silence.note("x")
    with silence.task("x", total=3) as task:
        task.advance()
        task.expect(4)
        task.say("y")
        task.give_up()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_gets_bars_and_anything_else_gets_lines() -> None:
    plain = io.StringIO()
    with progress_on(plain).task("x"):
        pass
    assert plain.getvalue().startswith("x …\nx: done")
    terminal = _Terminal()
    progress = progress_on(terminal)
    assert isinstance(progress, TerminalProgress)
    with progress.task("one [bold]", total=2, unit="packages") as one, progress.task("two") as two:
        one.advance()
        one.say("some/very/long/" * 9)
        two.expect(3)
        progress.note("a [note]")
    with pytest.raises(ValueError, match="x"), progress.task("three", unit="bytes"):
        raise ValueError("x")
    shown = terminal.getvalue()
    assert all(text in shown for text in ("one [bold]", "two", "three", "a [note]"))
