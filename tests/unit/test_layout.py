"""Checks of the whole tree: import layers, public names, docstrings, forbidden words.

Each test reads all modules and reports every one that breaks the rule.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "kubeocean"
WRITTEN = ("src", "tests", "docs", "scripts", ".ci", "Makefile", "README.md", "CHANGELOG.md")
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".go", ".sh", ""}
NO_EXPORTS = {"TYPE_CHECKING", "annotations", "lazy_exports"}  # imports of packages for themselves
LAZY_PACKAGES = {"kubeocean.api", "kubeocean.runtime", "kubeocean.sharding"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    """Return every module by its name: `kubeocean.runtime.clock`, `kubeocean.runtime.__init__`."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Return the modules that define names."""
    for name, tree in trees().items():
        if not name.endswith(("__init__", "__main__")):
            yield name, tree


def packages() -> Iterator[tuple[str, ast.Module]]:
    for name, tree in trees().items():
        if name.endswith(".__init__"):
            yield name.removesuffix(".__init__"), tree


def listed(tree: ast.Module) -> list[str] | None:
    """Return the names in `__all__` of a module; None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return [str(name) for name in ast.literal_eval(node.value)]
    return None


def defined(tree: ast.Module) -> set[str]:
    """Return the names of functions and classes that are not private."""
    kinds = (ast.ClassDef, *Function.__args__)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}


def imported_for_types(tree: ast.Module) -> dict[str, str]:
    """Return the module of each name that is imported under `if TYPE_CHECKING`."""
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module or ""
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def exported_lazily(tree: ast.Module) -> dict[str, str]:
    """Return the module, within the package, of each name that `lazy_exports` imports at first
    use."""
    return {
        name: module
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "lazy_exports"
        for module, names in ast.literal_eval(node.args[1]).items()
        for name in names
    }


# --- imports


def test_a_package_imports_only_what_is_below_it() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


# --- public names


def test_a_module_lists_all_of_its_public_names() -> None:
    wrong = {}
    for name, tree in modules():
        names = listed(tree)
        if names is None:
            wrong[name] = "no __all__"
        elif unlisted := defined(tree) - set(names):
            wrong[name] = f"neither listed nor private: {sorted(unlisted)}"
    assert wrong == {}


def test_what_a_module_lists_is_there() -> None:
    wrong = {}
    for name, tree in modules():
        module = importlib.import_module(name)
        if absent := [each for each in listed(tree) or () if not hasattr(module, each)]:
            wrong[name] = absent
    assert wrong == {}


def test_a_package_exports_what_it_lists_and_says_what_it_is() -> None:
    wrong = {}
    for name, tree in packages():
        bound = defined(tree) | imported_for_types(tree).keys()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        public = {each for each in bound if not each.startswith("_")} - NO_EXPORTS
        if public != set(listed(tree) or ()):
            wrong[name] = f"exports {sorted(public)}, lists {listed(tree)}"
        elif not ast.get_docstring(tree):
            wrong[name] = "has no docstring"
    assert wrong == {}


def test_lazy_exports_are_those_that_type_checkers_read() -> None:
    tables = {name: (exported_lazily(tree), imported_for_types(tree)) for name, tree in packages()}
    assert {name for name, (lazy, _) in tables.items() if lazy} >= LAZY_PACKAGES
    for name, (lazy, typed) in tables.items():
        assert {each: f"{name}.{module}" for each, module in lazy.items()} == typed, name


def test_every_exported_name_is_the_definition_of_its_module() -> None:
    for name, tree in packages():
        package, typed = importlib.import_module(name), imported_for_types(tree)
        assert [each for each in listed(tree) or () if not hasattr(package, each)] == [], name
        for each, module in typed.items():
            definition = getattr(importlib.import_module(module), each)
            assert getattr(package, each) is definition, f"{name}.{each}"


def test_importing_a_package_with_lazy_exports_imports_none_of_its_modules() -> None:
    names = sorted(LAZY_PACKAGES)
    program = f"import sys, {', '.join(names)}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {each for each in done.stdout.split() if each.startswith("kubeocean.")}
    assert loaded == {*names, "kubeocean.runtime._exports"}


def test_a_module_begins_with_a_promise() -> None:
    assert [name for name, tree in modules() if not ast.get_docstring(tree)] == []


# --- words


def lines() -> Iterator[tuple[str, str]]:
    """Yield each line of sources, tests, docs and scripts: its file and number, and its text."""
    for top in WRITTEN:
        start = ROOT / top
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
                    yield f"{path.relative_to(ROOT)}:{number}", line.strip()


def test_nothing_is_put_off_and_no_machine_is_named() -> None:
    later = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX"))
    here = "|".join("/" + "work/" + place for place in ("main", "shared"))
    forbidden = re.compile(rf"\b(?:{later})\b|(?:{here})\b")
    assert [(where, line) for where, line in lines() if forbidden.search(line)] == []


def test_only_commands_print() -> None:
    prints = [
        f"{name}:{node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and not name.startswith("kubeocean.cli.")
    ]
    assert prints == []
