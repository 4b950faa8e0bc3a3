"""`kubeocean assets`: the programs that local clusters are made of."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kubeocean.cli.output import Format, FormatOption, print_document, progress_for
from kubeocean.cli.running import run

__all__ = ["assets"]


def assets(
    kubelet: Annotated[bool, typer.Option("--kubelet", help="The kubelet, too.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the cached ones with their checksums.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not list them.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Find, download or build the programs, and say where they are."""

    async def work() -> None:
        from kubeocean.local.assets import DEFAULT, EVERYTHING, AssetFinder

        progress = progress_for()
        finder = AssetFinder(environ=os.environ, progress=progress)
        if verify:
            finder.verify()
            cached = finder.cache.directory
            good = "every byte is as it was made" if cached.is_dir() else "nothing is cached yet"
            progress.note(f"{cached}: {good}")
        found = await finder.ensure(EVERYTHING if kubelet else DEFAULT)
        paths = {name: str(found.path(name)) for name in found}
        if output is not Format.TEXT:
            print_document(paths, output)
        elif not quiet:
            for name, path in paths.items():
                typer.echo(f"{name:<24} {path}")

    run(work)
