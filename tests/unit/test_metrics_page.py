"""The page of metrics names every metric that the programs export."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "understand" / "metrics.md"
OWN = "kubeocean_"
KINDS = {"counter", "gauge", "histogram", "Family"}


def metric_names() -> set[str]:
    """The names of our own metrics, as the source defines them: the first argument of a call."""
    names: set[str] = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if called in KINDS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                # The library adds the suffix of counters.
                counter = called == "counter" and not first.value.endswith("_total")
                names.add(f"{first.value}_total" if counter else first.value)
    return {name for name in names if name.startswith(OWN)}


def metric_ends() -> set[str]:
    """The ends of names that have a prefix in the source: `f"{PREFIX}…"`, or a local function."""
    ends: set[str] = set()
    for path in sorted((ROOT / "src").rglob("metrics.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if isinstance(first, ast.JoinedStr):
                first = first.values[-1]
            if called in KINDS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                ends.add(first.value)
    return ends


def documented(page: str) -> set[str]:
    """Names on the page; a table whose head names a prefix has its rows without that prefix."""
    names: set[str] = set()
    prefix = ""
    for line in page.splitlines():
        if not line.startswith("|"):
            prefix = ""
        elif match := re.match(r"\| name \(`(\w+?)…`\)", line):
            prefix = match[1]
        for name in re.findall(r"`([a-z_]+)(?:\{[^`]*\})?`", line):
            names.add(name)
            names.add(f"{prefix}{name}")
    return names


def test_every_metric_is_on_the_page() -> None:
    missing = metric_names() - documented(PAGE.read_text(encoding="utf-8"))
    assert sorted(missing) == []


def test_every_metric_with_a_prefix_is_on_the_page() -> None:
    names = documented(PAGE.read_text(encoding="utf-8"))
    totals = {name.removesuffix("_total") for name in names}
    missing = [end for end in metric_ends() if not any(n.endswith(end) for n in names | totals)]
    assert sorted(missing) == []
    assert {"create_pod_errors_total", "vnode_total"} <= metric_ends()


def test_the_search_for_metrics_finds_some() -> None:
    assert {"kubeocean_watch_restarts_total"} <= metric_names()
    assert len(metric_names()) > 25
