"""Commands: short programs of the distribution, run to their end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Final

from kubeocean.errors import LocalError

__all__ = ["environment", "run"]

# Not every shell of root looks into all of them.
_SEARCH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def environment() -> Mapping[str, str]:
    """What such programs are told: where others are; no proxies, no settings of ours."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    search = dict.fromkeys((*filter(None, known), *_SEARCH))
    return {"PATH": os.pathsep.join(search), "HOME": "/root", "LANG": "C.UTF-8"}


def run(*argv: str, stdin: bytes = b"") -> str:
    """What the command prints.

    :raises LocalError: it failed, or there is no such program; with what it said.
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, env=environment())
    except OSError as error:
        raise LocalError(f"could not run {argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise LocalError(f"could not run `{' '.join(argv)}`: {said or done.returncode}")
    return done.stdout.decode("utf-8", "replace")
