"""The shape of the project: who may import whom, what is public, how long things may be.

Each test looks at all modules and tells of every one that is not as it should be.
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

FILE_LINES = 500
FUNCTION_LINES = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    """Every module by its name: `kubeocean.runtime.clock`, `kubeocean.runtime.__init__`."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Those that define something."""
    for name, tree in trees().items():
        if not name.endswith(("__init__", "__main__")):
            yield name, tree


def packages() -> Iterator[tuple[str, ast.Module]]:
    for name, tree in trees().items():
        if name.endswith(".__init__"):
            yield name.removesuffix(".__init__"), tree


def listed(tree: ast.Module) -> list[str] | None:
    """What `__all__` says; None where there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return [str(name) for name in ast.literal_eval(node.value)]
    return None


def defined(tree: ast.Module) -> set[str]:
    """The names of functions and classes that are not private."""
    kinds = (ast.ClassDef, *Function.__args__)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}


def rank(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions; each by name."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


# --- imports


def test_a_package_imports_only_what_is_below_it() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


# --- public names


def test_a_module_lists_all_that_is_public_in_order() -> None:
    wrong = {}
    for name, tree in modules():
        names = listed(tree)
        if names is None:
            wrong[name] = "it has no __all__"
        elif names != sorted(set(names), key=rank):
            wrong[name] = "its __all__ is not in order"
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
        bound = defined(tree)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import) and node.lineno:
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        public = {each for each in bound if not each.startswith("_")} - {"annotations"}
        if public != set(listed(tree) or ()):
            wrong[name] = f"exports {sorted(public)}, lists {listed(tree)}"
        elif not ast.get_docstring(tree):
            wrong[name] = "has no docstring"
    assert wrong == {}


def test_a_package_that_names_its_modules_names_them_all() -> None:
    wrong = {}
    for name in ("runtime", "local"):
        said = ast.get_docstring(trees()[f"kubeocean.{name}.__init__"]) or ""
        named = set(re.findall(r"`(\w+)`", said))
        there = {path.stem for path in (PACKAGE / name).glob("*.py")} - {"__init__"}
        if named != there:
            wrong[name] = {"not named": there - named, "not there": named - there}
    assert wrong == {}


def test_a_module_begins_with_a_promise() -> None:
    assert [name for name, tree in modules() if not ast.get_docstring(tree)] == []


# --- budgets


def test_a_file_fits_in_a_head() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): path.read_text("utf-8").count("\n")
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: n for name, n in lengths.items() if n > FILE_LINES} == {}


def test_a_function_fits_on_a_screen() -> None:
    lengths = {
        f"{name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES} == {}


# --- words


def lines() -> Iterator[tuple[str, str]]:
    """Every line that people wrote: where it stands, and what it says."""
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
