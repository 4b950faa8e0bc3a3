"""Instants: times as Kubernetes writes them, in whole seconds of UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

__all__ = ["ceil_second", "instant_of", "text_of"]


@overload
def instant_of(text: str) -> datetime: ...
@overload
def instant_of(text: str | None) -> datetime | None: ...
def instant_of(text: str | None) -> datetime | None:
    """What is written; nothing, if nothing is."""
    return datetime.fromisoformat(text) if text else None


@overload
def text_of(instant: datetime) -> str: ...
@overload
def text_of(instant: datetime | None) -> str | None: ...
def text_of(instant: datetime | None) -> str | None:
    """How it is written: seconds are cut off."""
    return None if instant is None else f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def ceil_second(instant: datetime) -> datetime:
    """The first whole second that is not earlier: who is promised a time gets no less of it."""
    whole = instant.astimezone(UTC).replace(microsecond=0)
    return whole if instant == whole else whole + timedelta(seconds=1)
