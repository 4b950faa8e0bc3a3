"""Cgroups: found wherever a machine mounts them."""

from __future__ import annotations

from pathlib import Path

from kubeocean.local.cgroups import hierarchies

HYBRID = """\
22 1 0:21 / /proc rw,relatime - proc proc rw
30 29 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
31 29 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 29 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
33 29 0:28 / /elsewhere/cpu rw,relatime - cgroup cgroup rw,cpu
34 29 0:29 /docker/x /sys/fs/cgroup/part rw,relatime - cgroup cgroup rw,memory
"""


def test_every_hierarchy_is_found_once_and_parts_of_one_are_not() -> None:
    assert hierarchies(HYBRID) == [
        Path("/sys/fs/cgroup/cpu"),
        Path("/sys/fs/cgroup/memory"),
        Path("/sys/fs/cgroup/unified"),
    ]


def test_one_hierarchy_of_version_2_is_enough() -> None:
    line = "30 29 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    assert hierarchies(line) == [Path("/sys/fs/cgroup")]
