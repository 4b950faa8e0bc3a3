"""Lazy exports: a name is imported from its module at first use, and an unknown one is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kubeocean.runtime


def run(program: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_a_name_imports_its_module_and_no_other() -> None:
    program = """
import sys
from kubeocean.runtime import Key
print("kubeocean.runtime.objects" in sys.modules, "kubeocean.runtime.client" in sys.modules)
print("Key" in vars(sys.modules["kubeocean.runtime"]))
"""
    assert run(program).split() == ["True", "False", "True"]


def test_all_exported_names_are_shown_before_their_first_use() -> None:
    program = "import kubeocean.runtime as r; print({*r.__all__} <= {*dir(r)}, 'Client' in vars(r))"
    assert run(program).split() == ["True", "False"]


def test_modules_of_a_package_are_imported_as_before() -> None:
    assert run("from kubeocean.runtime import clock; print(clock.__name__)").endswith(".clock")


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nil'"):
        _ = kubeocean.runtime.Nil
