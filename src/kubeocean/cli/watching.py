"""Watching: a view that stays, and changes with what it shows.

On a terminal there is one page, drawn anew after each look. Elsewhere a page or a document is
printed when something has changed, and not because time has passed. A look that fails says so, and
the next one follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from kubeocean.cli.presenting import Style, console, on_terminal, present, styled

if TYPE_CHECKING:
    from rich.console import Console

    from kubeocean.runtime.clock import Clock
    from kubeocean.view.model import OceanView
    from kubeocean.view.tables import Line

__all__ = ["keep_showing"]

_ROWS: Final = (20, 15, 10, 6, 3)  # of nodes: what is tried, down to the fewest

_Look = Callable[[], "Awaitable[OceanView]"]


async def keep_showing(
    look: _Look, style: Style, *, interval_s: float, clock: Clock | None = None
) -> NoReturn:
    """Look, show, wait, until cancelled.

    :raises KubeoceanError: already the first look fails.
    """
    from kubeocean.runtime.clock import RealClock

    clock = clock or RealClock()
    first = await look()
    if on_terminal() and not style.is_document:
        await _live(first, look, style, interval_s, clock)
    await _printed(first, look, style, interval_s, clock)


async def _printed(
    view: OceanView, look: _Look, style: Style, interval_s: float, clock: Clock
) -> NoReturn:
    from kubeocean.errors import ApiError

    shown: OceanView | str | None = None
    seen: OceanView | str = view
    while True:
        timeless = seen if isinstance(seen, str) else replace(seen, at=view.at)
        if timeless != shown:
            _print(seen, style, again=shown is not None)
            shown = timeless
        await clock.sleep(interval_s)
        try:
            seen = await look()
        except ApiError as error:
            seen = str(error)


def _print(seen: OceanView | str, style: Style, *, again: bool) -> None:
    if isinstance(seen, str):
        typer.echo(f"error: {seen}", err=True)
        return
    if style.is_document:
        from kubeocean.view.documents import document

        if again and style is Style.YAML:
            typer.echo("---")
        present(document(seen), style)
        return
    from kubeocean.view.pages import status_page
    from kubeocean.view.tables import plain

    if again:
        typer.echo("")
    stamp = f"{seen.at:%Y-%m-%d %H:%M:%S} UTC\n"
    typer.echo(stamp + plain(status_page(seen, wide=style is Style.WIDE)), nl=False)


async def _live(
    view: OceanView, look: _Look, style: Style, interval_s: float, clock: Clock
) -> NoReturn:
    from rich.live import Live

    from kubeocean.errors import ApiError
    from kubeocean.view.tables import Tone, line

    screen, trouble = console(), ""
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            page = _fitting(view, style, screen)
            if trouble:
                page.append(line(f"cannot be read now: {trouble}", Tone.BAD))
            live.update(styled(page), refresh=True)
            await clock.sleep(interval_s)
            try:
                view, trouble = await look(), ""
            except ApiError as error:
                trouble = str(error)


def _fitting(view: OceanView, style: Style, screen: Console) -> list[Line]:
    """The page with as many nodes as there is room for: what comes after them counts more."""
    from kubeocean.view.pages import status_page

    wide = style is Style.WIDE
    for rows in _ROWS:
        page = status_page(view, wide=wide, rows=rows)
        if len(styled(page).wrap(screen, screen.width)) < screen.height:
            break
    return page
