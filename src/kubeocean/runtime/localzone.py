"""Local zone: the time zone of this process, as Go programs find theirs.

TZ names a zone of the tz database, or a file of one; set but empty it means UTC. Without TZ it is
what /etc/localtime says, and UTC where there is no such file. A TZ that is neither is an error: to
take it for UTC, as Go does, would lend and take back nodes at the wrong hour.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from kubeocean.errors import ConfigError

__all__ = ["LOCALTIME", "local_zone"]

LOCALTIME: Final = Path("/etc/localtime")


def local_zone(environ: Mapping[str, str] = os.environ, *, localtime: Path = LOCALTIME) -> tzinfo:
    """The zone, called by its name or by the file that it comes from.

    :raises ConfigError: what is said is no zone.
    """
    said = environ.get("TZ")
    if said is None:
        return _read(str(localtime), str(localtime)) if localtime.exists() else UTC
    name = said.removeprefix(":")
    return _read(name, "TZ") if name else UTC


def _read(name: str, source: str) -> tzinfo:
    try:
        if not name.startswith("/"):
            return ZoneInfo(name)
        with open(name, "rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (KeyError, ValueError, OSError):  # no such name, no such form, no such file
        raise ConfigError(
            "is no time zone, such as Europe/Berlin", source=source, value=name
        ) from None
