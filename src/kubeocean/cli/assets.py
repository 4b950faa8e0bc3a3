"""`kubeocean assets`: finds, downloads or builds the programs of local clusters."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kubeocean.cli._output import FormatOption, OutputFormat, print_document, progress_for
from kubeocean.cli._run import run

__all__ = ["assets"]


def assets(
    kubelet: Annotated[
        bool, typer.Option("--kubelet", help="Also find, download or build the kubelet.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare cached programs with their checksums.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not list the programs.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Find, download or build the programs of local clusters, and print their paths."""

    async def work() -> None:
        from kubeocean.local.assets import DEFAULT, EVERYTHING, AssetFinder

        progress = progress_for()
        finder = AssetFinder(environ=os.environ, progress=progress)
        if verify:
            finder.verify()
            directory = finder.cache.directory
            result = "all checksums match" if directory.is_dir() else "the cache is empty"
            progress.note(f"{directory}: {result}")
        programs = await finder.ensure(EVERYTHING if kubelet else DEFAULT)
        paths = {name: str(programs.path(name)) for name in programs}
        if output is not OutputFormat.TEXT:
            print_document(paths, output)
        elif not quiet:
            for name, path in paths.items():
                typer.echo(f"{name:<24} {path}")

    run(work)
