"""Cgroups: found wherever a machine mounts them."""

from __future__ import annotations

from pathlib import Path

from kubeocean.local.real_nodes.cgroups import create, hierarchies

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


def test_a_new_cgroup_of_version_1_may_use_what_its_parent_may(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    for name in ("kubeocean", "kubeocean/a"):  # the kernel makes the files with the directory
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpuset.cpus").write_text("\n")
    assert create("a", roots=[tmp_path]) == "/kubeocean/a"
    assert (tmp_path / "kubeocean/a/cpuset.cpus").read_text() == "0-1\n"


def test_controllers_of_version_2_are_handed_down(tmp_path: Path) -> None:
    for name in ("", "kubeocean", "kubeocean/a"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cgroup.controllers").write_text("memory\n")
    create("a", roots=[tmp_path])
    for name in ("", "kubeocean", "kubeocean/a"):
        assert (tmp_path / name / "cgroup.subtree_control").read_text() == "+memory"


def test_version_2_is_left_alone_where_version_1_is_in_charge(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    create("a", roots=[tmp_path])
    assert not (tmp_path / "cgroup.subtree_control").exists()
    assert (tmp_path / "kubeocean/a").is_dir()
