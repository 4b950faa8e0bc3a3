"""The public names of the package."""

from __future__ import annotations

import kubeocean.fleet.scheduler as scheduler


def test_every_public_name_exists() -> None:
    assert [name for name in scheduler.__all__ if not hasattr(scheduler, name)] == []
