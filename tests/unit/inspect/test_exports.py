"""The public names of the package exist, and importing the package imports none of its modules."""

from __future__ import annotations

import subprocess
import sys

import kubeocean.inspect


def test_every_exported_name_exists() -> None:
    for name in kubeocean.inspect.__all__:
        value = getattr(kubeocean.inspect, name)
        assert value.__module__.startswith("kubeocean.inspect.")
    assert {*kubeocean.inspect.__all__} <= {*dir(kubeocean.inspect)}


def test_importing_the_package_imports_no_module_of_it() -> None:
    program = """
import sys
import kubeocean.inspect
print([name for name in sys.modules if name.startswith("kubeocean.inspect.")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
