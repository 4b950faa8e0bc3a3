"""When a pod that has to go at once is deleted, and when again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.runtime.objects import Meta, Object
from kubeocean.syncer.removals import UNDERWAY_S, removal_in_s

MARKED = datetime(2026, 11, 16, 12, tzinfo=UTC)


def pod(*, marked: bool = True, grace_s: int = 0, finalizers: tuple[str, ...] = ()) -> Object:
    mark = f"{MARKED:%FT%TZ}" if marked else None
    meta = Meta(
        deletion_timestamp=mark,
        deletion_grace_period_seconds=grace_s if marked else None,
        finalizers=finalizers,
    )
    return Object(metadata=meta)


@pytest.mark.parametrize("one", [pod(marked=False), pod(grace_s=30)])
def test_one_that_nobody_removes_yet_is_deleted_now(one: Object) -> None:
    assert removal_in_s(one, MARKED) == 0


def test_one_that_a_finalizer_keeps_is_not_deleted_again() -> None:
    assert removal_in_s(pod(finalizers=("example.com/keep",)), MARKED + timedelta(days=1)) is None


def test_one_that_is_being_removed_is_given_time_and_then_deleted_again() -> None:
    assert removal_in_s(pod(), MARKED) == UNDERWAY_S
    assert removal_in_s(pod(), MARKED + timedelta(seconds=1)) == UNDERWAY_S - 1
    assert removal_in_s(pod(), MARKED + timedelta(seconds=UNDERWAY_S)) == 0
    assert removal_in_s(pod(), MARKED + timedelta(days=1)) == 0
