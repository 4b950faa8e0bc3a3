"""Expressions and parsers of foreign bytes take time in proportion to the length of their input.

Every compiled expression of the package is tried; a new one is covered without a change here. CPU
time of two lengths is compared, never a duration: four times the input may take four times as long,
and sixteen times would be quadratic.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import kubeocean
from kubeocean.errors import KubeoceanError, api_error
from kubeocean.manager.go_template import Template
from kubeocean.proxier.http import parse_head
from kubeocean.proxier.metrics_text import PodName, rewrite
from kubeocean.runtime.objects import Key
from kubeocean.runtime.quantity import Quantity
from kubeocean.runtime.redaction import redact_text
from kubeocean.runtime.selectors import FieldSelector, LabelSelector

KIB = 1 << 10
SHORT, LONG = 16 * KIB, 64 * KIB
QUADRATIC = (LONG / SHORT) ** 2
ENOUGH_S = 0.02  # less CPU time than this for the long input is no reason for a comparison
# Characters of which a repeat may be matched in several ways, and ends that cannot match.
REPEATS = (
    *(" ", "\t", "a", "A", "0", ".", "-", "_", "/", "=", ",", ":", '"', "{", "(", "\\"),
    *("a=", "a ", "a,", "1.", "a.", "'a'", "{{", 'x="', "\r\n", "a: ", "%41", "e1"),
)
ENDS = ("\x01", "!")


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield every compiled expression that is a global of a module, also in tuples and dicts."""
    for info in pkgutil.walk_packages(kubeocean.__path__, "kubeocean."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            for number, pattern in enumerate(_patterns_in(value)):
                yield f"{info.name}.{name}[{number}]", pattern


def _patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _patterns_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _patterns_in(each)


ALL = {pattern.pattern: (name, pattern) for name, pattern in patterns()}


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    with suppress(KubeoceanError, ValueError, RecursionError):
        work()
    return time.process_time() - began


def assert_linear(work: Callable[[str], object], repeat: str, end: str) -> None:
    """Compare the CPU times of a long and a short input; the best of three each."""

    def best(size: int) -> float:
        text = repeat * (size // len(repeat)) + end
        return min(seconds(lambda: work(text)) for _ in range(3))

    long = seconds(lambda: work(repeat * (LONG // len(repeat)) + end))
    if long < ENOUGH_S:
        return
    # A busy machine makes single measurements longer; quadratic work is too slow in all of them.
    ratio = min(best(LONG) / max(best(SHORT), 1e-4) for _ in range(3))
    assert ratio < QUADRATIC * 0.75, f"{ratio:.0f} times as long for 4 times {repeat!r}"


@pytest.mark.parametrize("name", [name for name, _ in ALL.values()])
def test_no_expression_is_quadratic(name: str) -> None:
    (pattern,) = (pattern for key, pattern in ALL.values() if key == name)
    for repeat in REPEATS:
        for end in ENDS:

            def work(text: str) -> None:
                subject = text.encode() if isinstance(pattern.pattern, bytes) else text
                pattern.match(subject)
                pattern.fullmatch(subject)

            assert_linear(work, repeat, end)


def test_the_search_for_expressions_finds_those_of_every_parser() -> None:
    modules = {name.rpartition(".")[0] for name, _ in ALL.values()}
    assert {"kubeocean.proxier.http", "kubeocean.runtime.selectors"} <= modules
    assert len(ALL) > 20


POD = {("ns", "p"): PodName("team", "web-0", "u1")}
PARSERS: dict[str, Callable[[str], object]] = {
    "heads": lambda text: parse_head(
        f"GET / HTTP/1.1\r\nX:{text}\r\n\r\n".encode("latin-1", "replace"), limit=1 << 20
    ),
    "metrics": lambda text: rewrite(f'a{{namespace="ns",pod="p",x="{text}"}} 1\n{text} 2\n', POD),
    "redaction": redact_text,
    "errors": lambda text: api_error(500, text.encode(), doing="get"),
    "quantities": Quantity.stored,
    "label selectors": LabelSelector.parse,
    "field selectors": FieldSelector.parse,
    "templates": lambda text: Template(text, source="t"),
    "keys": Key.parse,
}


@pytest.mark.parametrize("parser", PARSERS)
def test_no_parser_is_quadratic(parser: str) -> None:
    for repeat in REPEATS:
        for end in ENDS:
            assert_linear(PARSERS[parser], repeat, end)
