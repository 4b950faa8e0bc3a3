"""Expressions that decide whether an object is available: their values and their problems."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeocean.fleet.applier.expressions import (
    LONGEST,
    NOT_INSTALLED,
    CompiledExpression,
    ExpressionProblem,
    _environment,
    compiled,
)
from kubeocean.runtime.objects import Json

DATABASE: Json = {
    "apiVersion": "example.com/v1",
    "kind": "Database",
    "metadata": {"name": "db", "generation": 3, "annotations": {"a.b/c": "x"}},
    "spec": {"replicas": 2, "limit": 1.5, "sizes": [1, 2, 3], "none": None},
    "status": {
        "phase": "Ready",
        "observedGeneration": 3,
        "replicas": 2,
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Idle", "status": "False"}],
    },
}


def evaluated(text: str, obj: Json = DATABASE) -> bool | ExpressionProblem:
    expression = compiled(text)
    return expression if isinstance(expression, ExpressionProblem) else expression.evaluate(obj)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.status.phase == 'Ready'", True),
        ("self.status.phase == 'Failed'", False),
        ("self.status.replicas >= self.spec.replicas", True),
        ("self.status.observedGeneration == self.metadata.generation", True),
        ("self.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", True),
        ("self.status.conditions.all(c, c.status == 'True')", False),
        ("has(self.status.error)", False),
        ("!has(self.status.error) && self.status.phase in ['Ready', 'Idle']", True),
        ("self.?status.?error.orValue('') == ''", True),
        ("self.metadata.annotations['a.b/c'].startsWith('x')", True),
        ("self.status.phase.lowerAscii() == 'ready'", True),
        ("self.spec.sizes.map(n, n * 2) == [2, 4, 6]", True),
        ("self.spec.limit > 1", True),
        ("self.spec.none == null", True),
        ("self.status.error == '' || true", True),
        ("timestamp('2026-01-01T00:00:00Z') < timestamp('2026-01-02T00:00:00Z')", True),
        ("// a comment\n self.kind == 'Database'", True),
    ],
)
def test_values(text: str, expected: bool) -> None:
    assert evaluated(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self.status.ready", 'the object has no field "ready"'),
        ("self.status['ready'] == true", 'the object has no field "ready"'),
        ("self.state.phase == 'Ready'", 'the object has no field "state"'),
        ("has(self.state.phase)", 'the object has no field "state"'),
        ("self.parts.all(p, p.ready)", 'the object has no field "parts"'),
        ("self.status.conditions[2].status == 'True'", "a list of the object has no element 2"),
    ],
)
def test_a_field_that_the_object_lacks_is_waited_for(text: str, message: str) -> None:
    assert evaluated(text) == ExpressionProblem(message, is_missing=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the expression is empty"),
        (" \n", "the expression is empty"),
        ("1 +", "line 1, column 4: Syntax error"),
        ("self.status.phase = 'Ready'", "Syntax error"),
        ("status.phase == 'Ready'", "undeclared reference to 'status.phase'"),
        ("ready(self)", "undeclared reference to 'ready'"),
        ("1 + 1", "the value is of the type int, and must be true or false"),
        ("'yes'", "the value is of the type string, and must be true or false"),
        ("'a' + 1 == 'a1'", "found no matching overload"),
        ("true || " * 700 + "true", f"and may have {LONGEST}"),
        ("(" * 200 + "true" + ")" * 200, "recursion"),
    ],
)
def test_an_invalid_expression_is_a_problem(text: str, message: str) -> None:
    problem = compiled(text)
    assert isinstance(problem, ExpressionProblem)
    assert message in problem.message
    assert "\n" not in problem.message
    assert not problem.is_missing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self.status", "the value is of the type map<dyn, dyn>, and must be true or false"),
        ("self.status.phase", "the value is of the type string, and must be true or false"),
        ("self.status.phase > 1", "No matching overloads found"),
        ("self.spec.none.field == 1", "Applying SELECT to non-message type"),
        ("1 / (self.spec.replicas - 2) == 1", "divide by zero"),
        ("self.status.phase.matches('(')", "invalid regular expression"),
    ],
)
def test_an_expression_that_does_not_fit_the_object_is_a_problem(text: str, message: str) -> None:
    problem = evaluated(text)
    assert isinstance(problem, ExpressionProblem)
    assert message in problem.message
    assert not problem.is_missing


def test_loops_end_after_a_number_of_iterations() -> None:
    loops = "self.l.all(a, self.l.all(b, self.l.all(c, true)))"
    problem = evaluated(loops, {"l": list(range(1000))})
    assert problem == ExpressionProblem("Iteration budget exceeded")


def test_an_expression_is_compiled_once() -> None:
    text = "self.status.phase == 'CompiledOnce'"
    assert compiled(text) is compiled(text)
    limit = compiled.cache_parameters()["maxsize"]
    assert limit is not None and limit <= 1000


def test_a_missing_library_is_a_problem_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.cache_clear()
    _environment.cache_clear()
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    assert compiled("true") == ExpressionProblem(NOT_INSTALLED)
    compiled.cache_clear()


# --- any expression, any object

NAMES = st.sampled_from(["status", "spec", "phase", "conditions", "replicas", "x", "y"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
LITERALS = st.sampled_from(["1", "-1", "0", "1.5", "'a'", "true", "null", "[]", "{}", "[1, 'a']"])
PATHS = st.lists(NAMES, max_size=3).map(lambda names: ".".join(["self", *names]))


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["==", "!=", "<", ">=", "+", "-", "/", "%", "in", "&&", "||"])
    macros = st.sampled_from(["all", "exists", "exists_one", "map", "filter"])
    return (
        st.tuples(inner, operators, inner).map(lambda parts: f"({' '.join(parts)})")
        | st.tuples(inner, macros, inner).map(lambda p: f"{p[0]}.{p[1]}(x, {p[2]})")
        | st.tuples(inner, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]")
        | inner.map(lambda part: f"!({part})")
        | inner.map(lambda part: f"size({part})")
        | inner.map(lambda part: f"string({part}).matches('a')")
        | PATHS.map(lambda path: f"has({path}.x)")
    )


EXPRESSIONS = st.recursive(LITERALS | PATHS | st.just("x"), _joined, max_leaves=6)


@given(EXPRESSIONS | st.text(max_size=30), OBJECTS)
@example("self.x == 1", {"x": 2**70})
@example("self.x == 1", {"x": "\ud800"})
@example("\x00", {})
@example("self == self", {"x": float("nan")})
def test_no_expression_and_no_object_raises(text: str, obj: Json) -> None:
    value = evaluated(text, obj)
    assert isinstance(value, bool | ExpressionProblem)
    if isinstance(value, ExpressionProblem):
        assert value.message
        assert value.message.isprintable()
        assert len(value.message) <= 240
    assert evaluated(text, obj) == value  # the same again: a status with it is written once


@given(OBJECTS)
def test_a_comparison_is_that_of_python(obj: Json) -> None:
    expression = compiled("self.status.phase == 'Ready'")
    assert isinstance(expression, CompiledExpression)
    status = obj.get("status")
    phase = status.get("phase") if isinstance(status, dict) else None
    assert (expression.evaluate(obj) is True) == (phase == "Ready")
