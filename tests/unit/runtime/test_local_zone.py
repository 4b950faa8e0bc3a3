"""The zone of a process: TZ, then /etc/localtime, then UTC; never a guess."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from importlib import resources
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import local_zone

SUMMER, WINTER = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)


def hours(zone: tzinfo) -> tuple[float, float]:
    """Return the hours east of Greenwich, in winter and in summer."""
    offsets = [instant.astimezone(zone).utcoffset() for instant in (WINTER, SUMMER)]
    winter, summer = (offset / timedelta(hours=1) for offset in offsets if offset is not None)
    return winter, summer


@pytest.fixture
def berlin(tmp_path: Path) -> Path:
    path = tmp_path / "localtime"
    path.write_bytes(resources.files("tzdata").joinpath("zoneinfo/Europe/Berlin").read_bytes())
    return path


@pytest.mark.parametrize("message", ["America/New_York", ":America/New_York"])
def test_tz_names_a_zone(message: str, berlin: Path) -> None:
    assert hours(local_zone({"TZ": message}, localtime=berlin)) == (-5, -4)


@pytest.mark.parametrize("message", ["", ":"])
def test_an_empty_tz_is_utc(message: str, berlin: Path) -> None:
    assert local_zone({"TZ": message}, localtime=berlin) is UTC


def test_tz_may_be_a_file(berlin: Path) -> None:
    zone = local_zone({"TZ": str(berlin)}, localtime=Path("/nowhere"))
    assert (hours(zone), str(zone)) == ((1, 2), str(berlin))


def test_without_tz_the_zone_is_the_machines(berlin: Path, tmp_path: Path) -> None:
    assert hours(local_zone({}, localtime=berlin)) == (1, 2)
    assert local_zone({}, localtime=tmp_path / "none") is UTC


@pytest.mark.parametrize(
    "message", ["CST-8", "Mars/Olympus", "../../etc/passwd", "/nowhere", "Europe"]
)
def test_another_tz_is_an_error(message: str) -> None:
    with pytest.raises(ConfigError, match=r"^TZ: is not a time zone"):
        local_zone({"TZ": message})


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    damaged = tmp_path / "localtime"
    damaged.write_text("no zone")
    with pytest.raises(ConfigError, match=f"^{damaged}: is not a time zone"):
        local_zone({}, localtime=damaged)
