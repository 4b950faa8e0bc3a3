"""Progress: display of long steps on stderr.

A long step is a `Task` with a label, a total where one is known, and a detail that changes. On a
terminal a task is a live bar; elsewhere one line at the start, one every ten seconds, and one at
the end, so that a log shows progress without being flooded. Progress goes to stderr: stdout belongs
to results.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from kubeocean.runtime.clock import Clock, RealClock

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

__all__ = [
    "PlainProgress",
    "Progress",
    "Silence",
    "Task",
    "TerminalProgress",
    "progress_on",
    "readable_bytes",
]

_EVERY_S: Final = 10.0
_LIVE_HZ: Final = 8.0
_DETAIL_WIDTH: Final = 48


class Task(Protocol):
    """A step whose progress is displayed."""

    def advance(self, by: int = 1) -> None:
        """Add `by` to the amount of the total that is done."""

    def expect(self, total: int) -> None:
        """Set the total amount of work of the step."""

    def say(self, detail: str) -> None:
        """Show a short text about the present state of the step."""

    def give_up(self) -> None:
        """End the step as not done."""


class Progress(Protocol):
    """Display of the progress of steps."""

    def note(self, message: str) -> None:
        """Print one permanent line."""

    def task(self, label: str, *, total: int = 0, unit: str = "") -> AbstractContextManager[Task]:
        """Show a step while the context lasts; `unit` is "bytes" or a plural noun."""


def progress_on(stream: TextIO | None = None) -> Progress:
    """Return a display: bars if `stream` is a terminal, else lines; none if `stream` is closed."""
    stream = sys.stderr if stream is None else stream
    if stream is None:  # Python has no stderr if its parent closed the descriptor
        return Silence()
    if stream.isatty():
        return TerminalProgress(stream)

    def write(line: str) -> None:
        stream.write(f"{line}\n")
        stream.flush()

    return PlainProgress(write)


def readable_bytes(count: float) -> str:
    """Return a number of bytes with a decimal unit, such as "1.5 MB" for 1536000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


class Silence:
    """Progress without a display."""

    def note(self, message: str) -> None:
        pass

    @contextmanager
    def task(self, label: str, *, total: int = 0, unit: str = "") -> Iterator[Task]:
        yield _Count(total)


class _Count:
    """A task that counts its progress and displays nothing."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.detail = ""
        self.given_up = False

    def advance(self, by: int = 1) -> None:
        self.done += by

    def expect(self, total: int) -> None:
        self.total = total

    def say(self, detail: str) -> None:
        self.detail = detail

    def give_up(self) -> None:
        self.given_up = True


class PlainProgress:
    """Progress as lines of text, each passed to `write` without its line end."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        every_s: float = _EVERY_S,
        clock: Clock | None = None,
    ) -> None:
        self._write = write
        self._every_s = every_s
        self._clock = clock or RealClock()

    def note(self, message: str) -> None:
        self._write(message)

    @contextmanager
    def task(self, label: str, *, total: int = 0, unit: str = "") -> Iterator[Task]:
        task = _Count(total)
        start = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def tick() -> None:
            nonlocal timer
            elapsed = self._clock.monotonic() - start
            self._write(_line(label, task, unit, elapsed))
            timer = loop.call_later(self._every_s, tick)

        self._write(f"{label} …")
        timer = loop.call_later(self._every_s, tick)
        try:
            yield task
        finally:
            timer.cancel()
        ended = "not done after" if task.given_up else "done in"
        self._write(f"{label}: {ended} {self._clock.monotonic() - start:.1f} s")


def _line(label: str, task: _Count, unit: str, elapsed_s: float) -> str:
    parts = [f"{elapsed_s:.0f} s"]
    if unit == "bytes" and task.done:
        of = f" of {readable_bytes(task.total)}" if task.total else ""
        parts.append(f"{readable_bytes(task.done)}{of}")
    elif task.done:
        # Totals of a build are estimates: "of about", and never more than the whole.
        of = f" of about {max(task.total, task.done)}" if task.total else ""
        parts.append(f"{task.done}{of} {unit}".rstrip())
    if task.detail:
        parts.append(task.detail)
    return f"{label}: {', '.join(parts)}"


class TerminalProgress:
    """Progress as live bars on a terminal, with `rich`; several tasks share one display."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bars: Bars | None = None
        self._open = 0

    def note(self, message: str) -> None:
        self._display().console.print(message, markup=False, highlight=False)

    @contextmanager
    def task(self, label: str, *, total: int = 0, unit: str = "") -> Iterator[Task]:
        bars = self._display()
        if self._open == 0:
            bars.start()
        self._open += 1
        task = _Bar(bars, label, total, unit)
        try:
            yield task
            if not task.given_up:
                task.finish()
        finally:
            self._open -= 1
            if self._open == 0:
                bars.stop()
                self._bars = None  # a stopped display cannot show new rows in place

    def _display(self) -> Bars:
        if self._bars is None:
            self._bars = _bars(self._stream)
        return self._bars


def _bars(stream: TextIO) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    return Bars(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[amount]}", markup=False, style="cyan"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False, style="dim"),
        console=Console(file=stream),
        refresh_per_second=_LIVE_HZ,
    )


class _Bar(_Count):
    """A task that is a row of a live display."""

    def __init__(self, bars: Bars, label: str, total: int, unit: str) -> None:
        super().__init__(total)
        self._bars = bars
        self._unit = unit
        self._row = bars.add_task(label, total=total or None, amount="", detail="")

    def advance(self, by: int = 1) -> None:
        super().advance(by)
        self._show()

    def expect(self, total: int) -> None:
        super().expect(total)
        self._show()

    def say(self, detail: str) -> None:
        super().say(detail)
        self._bars.update(self._row, detail=_shorten(detail))

    def _show(self) -> None:
        total = max(self.total, self.done) if self.total else None
        amount = readable_bytes(self.done) if self._unit == "bytes" else f"{self.done}"
        self._bars.update(self._row, completed=self.done, total=total, amount=amount)

    def finish(self) -> None:
        whole = self.done or 1
        self._bars.update(self._row, completed=whole, total=whole, detail="")


def _shorten(text: str) -> str:
    return text if len(text) <= _DETAIL_WIDTH else f"…{text[1 - _DETAIL_WIDTH :]}"
