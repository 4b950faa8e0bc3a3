"""Problems: each is one line that people can read."""

from __future__ import annotations

from kubeocean.api.validation import Problem, blocking, describe


def test_a_problem_names_field_message_and_value() -> None:
    assert str(Problem("spec.a", 5, "must be less")) == "spec.a: must be less (got 5)"


def test_a_long_value_is_cut() -> None:
    message = str(Problem("spec.a", "x" * 1000, "is too long"))
    assert len(message) < 250
    assert message.endswith("…)")


def test_problems_are_told_in_one_line() -> None:
    assert describe([]) == ""
    actual = [Problem("a", 1, "is odd", blocks=False), Problem("b", 2, "is bad")]
    assert describe(actual) == "a: is odd (got 1); b: is bad (got 2)"
    assert blocking(actual) == (actual[1],)
