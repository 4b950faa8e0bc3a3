"""Zones: every name leads to a zone, wherever we run."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from kubeocean.api.validation import zone_names


def test_zones_are_those_of_the_database() -> None:
    names = zone_names()
    assert {"UTC", "Europe/Berlin", "Asia/Shanghai", "US/Pacific", "Asia/Kolkata"} <= names
    assert not {"", "Factory", "Local", "localtime", "posixrules", "Europe"} & names
    assert len(names) > 500


def test_every_name_is_a_zone() -> None:
    for name in zone_names():
        assert ZoneInfo(name).key == name
