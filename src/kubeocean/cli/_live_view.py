"""Live view of an installation: read and shown again at an interval, until interrupted.

On a terminal one page is drawn again after each read. Elsewhere a page or a document is printed
when the view has changed, and not because time has passed. A read that fails is reported, and
reading goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from kubeocean.cli._output import OutputFormat, print_document
from kubeocean.cli._views import console, on_terminal, styled

if TYPE_CHECKING:
    from rich.console import Console

    from kubeocean.inspect.format import Line
    from kubeocean.inspect.status.model import InstallationView
    from kubeocean.runtime.clock import Clock

__all__ = ["keep_showing"]

_ROWS: Final = (20, 15, 10, 6, 3)  # numbers of nodes that are tried until the page fits

_Read = Callable[[], "Awaitable[InstallationView]"]


async def keep_showing(
    read: _Read, output: OutputFormat, *, interval_s: float, clock: Clock | None = None
) -> NoReturn:
    """Read the installation and show its view at an interval, until cancelled.

    :raises KubeoceanError: the first read fails.
    """
    from kubeocean.runtime.clock import RealClock

    clock = clock or RealClock()
    first = await read()
    if on_terminal() and not output.is_document:
        await _live(first, read, output, interval_s, clock)
    await _printed(first, read, output, interval_s, clock)


async def _printed(
    view: InstallationView, read: _Read, output: OutputFormat, interval_s: float, clock: Clock
) -> NoReturn:
    from kubeocean.errors import ApiError

    shown: InstallationView | str | None = None
    latest: InstallationView | str = view
    while True:
        timeless = latest if isinstance(latest, str) else replace(latest, at=view.at)
        if timeless != shown:
            _print(latest, output, again=shown is not None)
            shown = timeless
        await clock.sleep(interval_s)
        try:
            latest = await read()
        except ApiError as error:
            latest = str(error)


def _print(latest: InstallationView | str, output: OutputFormat, *, again: bool) -> None:
    """Print a view, or the error of a read."""
    if isinstance(latest, str):
        from kubeocean.errors import printable

        typer.echo(f"error: {printable(latest)}", err=True)
        return
    from kubeocean.inspect.status.pages import document, status_page

    if output.is_document:
        if again and output is OutputFormat.YAML:
            typer.echo("---")
        print_document(document(latest), output)
        return
    from kubeocean.inspect.format import plain

    if again:
        typer.echo("")
    stamp = f"{latest.at:%Y-%m-%d %H:%M:%S} UTC\n"
    typer.echo(stamp + plain(status_page(latest, wide=output is OutputFormat.WIDE)), nl=False)


async def _live(
    view: InstallationView, read: _Read, output: OutputFormat, interval_s: float, clock: Clock
) -> NoReturn:
    from rich.live import Live

    from kubeocean.errors import ApiError
    from kubeocean.inspect.format import Tone, line

    screen, failure = console(), ""
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            page = _fitting(view, output, screen)
            if failure:
                page.append(line(f"cannot be read now: {failure}", Tone.BAD))
            live.update(styled(page), refresh=True)
            await clock.sleep(interval_s)
            try:
                view, failure = await read(), ""
            except ApiError as error:
                failure = str(error)


def _fitting(view: InstallationView, output: OutputFormat, screen: Console) -> list[Line]:
    """Return the status page with as many nodes as fit the terminal; lines below the nodes stay."""
    from kubeocean.inspect.status.pages import status_page

    wide = output is OutputFormat.WIDE
    for rows in _ROWS:
        page = status_page(view, wide=wide, rows=rows)
        if len(styled(page).wrap(screen, screen.width)) < screen.height:
            break
    return page
