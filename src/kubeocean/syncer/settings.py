"""Settings of the syncer: the flags that it always had, and some of its own.

What can be checked without a cluster is checked here, and an error names the flag and its value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.api.zones import zone_names
from kubeocean.errors import ConfigError
from kubeocean.leasing.windows import zone_of
from kubeocean.runtime.addresses import BindAddress
from kubeocean.runtime.election import JITTER
from kubeocean.runtime.goflags import (
    Reader,
    address,
    boolean,
    duration,
    flag,
    integer,
    number,
    text,
)
from kubeocean.runtime.labels import check_subdomain
from kubeocean.runtime.localzone import local_zone
from kubeocean.runtime.zapflags import ZapFlags

__all__ = ["Settings"]

_HIGHEST_PORT: Final = 65_535
_BURST: Final = 10  # where a rate is given without one; client-go's


def _name(written: str, flag: str) -> str:
    """The name of an object, or none."""
    try:
        if written:
            check_subdomain(written)
    except ConfigError:
        raise ConfigError(
            "must be a lowercase DNS subdomain", source=flag, value=written
        ) from None
    return written


def _domain(written: str, flag: str) -> Domain:
    return Domain(_name(written, flag) or group.DEFAULT.name)


def _port(written: str, flag: str) -> int:
    port = integer(written, flag)
    if not 1 <= port <= _HIGHEST_PORT:
        raise ConfigError(f"must be a port, 1 to {_HIGHEST_PORT}", source=flag, value=written)
    return port


def _zone(written: str, flag: str) -> str:
    if written and written not in zone_names():
        raise ConfigError(
            "must be a name of the tz database, such as Europe/Berlin", source=flag, value=written
        )
    return written


def _seconds(written: str, flag: str) -> float:
    seconds = duration(written, flag)
    if seconds <= 0:
        raise ConfigError("must be more than 0", source=flag, value=written)
    return seconds


def _rate(cluster: str, kind: str, read: Reader[float]) -> float:
    unit = {"qps": "Requests a second", "burst": "Requests at once"}[kind]
    return flag(f"{cluster}-client-{kind}", read, "0", f"{unit} to the {cluster} cluster; 0: any.")
