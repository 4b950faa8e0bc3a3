"""Health checks: which expression decides about an object, and how its value is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.conditions import Availability
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.expressions import LONGEST, ExpressionProblem
from kubeocean.fleet.applier.health_checks import (
    HealthCheck,
    HealthChecks,
    observation,
    read_health_checks,
)
from kubeocean.fleet.extensions import OURS, UPSTREAM
from kubeocean.fleet.settings import MemberSettings
from kubeocean.runtime.flags import parse
from kubeocean.runtime.objects import Json

KEY = "kubeocean.io/available-when"
CHECK = HealthCheck("self.status.phase ==\n  'Ready'", "the annotation")
BY_KIND = {("example.com", "Database"): "of the kind", ("", "ConfigMap"): "of data"}


def manifest(annotation: Any = None, api_version: str = "example.com/v1") -> Json:
    annotations = {} if annotation is None else {KEY: annotation}
    metadata = {"name": "db", "annotations": annotations}
    return {"apiVersion": api_version, "kind": "Database", "metadata": metadata}


def test_the_annotation_comes_before_the_kind() -> None:
    checks = HealthChecks(BY_KIND)
    assert checks.check_of(manifest()) == ("of the kind", "--health-checks of the member's agent")
    assert checks.check_of(manifest("own")) == ("own", f"the annotation {KEY}")
    assert checks.check_of(manifest("")) == ("", f"the annotation {KEY}")
    assert checks.check_of(manifest(api_version="example.com/v2alpha1")) is not None
    assert checks.check_of(manifest(api_version="example.org/v1")) is None
    assert checks.check_of({"apiVersion": "v1", "kind": "ConfigMap"}) is not None


@given(
    st.dictionaries(
        st.sampled_from(["apiVersion", "kind", "metadata"]),
        st.none() | st.integers() | st.text() | st.just({"annotations": 7}),
    )
)
def test_any_manifest_has_a_check_or_none(body: Json) -> None:
    assert HealthChecks(BY_KIND).check_of(body) is None


def test_kubefleets_statuses_have_no_health_checks() -> None:
    assert UPSTREAM.health_checks(BY_KIND) is None
    assert OURS.health_checks({}) is not None


@pytest.mark.parametrize(
    ("value", "availability", "message"),
    [
        (
            True,
            Availability.AVAILABLE,
            "the object is available: self.status.phase == 'Ready' is true",
        ),
        (
            False,
            Availability.NOT_YET,
            "the object is not available yet: self.status.phase == 'Ready' is false",
        ),
        (
            ExpressionProblem('the object has no field "status"', is_missing=True),
            Availability.NOT_YET,
            'the object is not available yet: the object has no field "status",'
            " which self.status.phase == 'Ready' reads",
        ),
        (
            ExpressionProblem("no such function"),
            Availability.FAILED,
            "the health check self.status.phase == 'Ready' could not be evaluated:"
            " no such function; correct the annotation",
        ),
    ],
)
def test_how_values_are_reported(
    value: bool | ExpressionProblem, availability: Availability, message: str
) -> None:
    assert observation(CHECK, value) == (availability, message, True)


def test_a_problem_of_the_process_is_tried_again() -> None:
    passing = observation(CHECK, ExpressionProblem("the evaluation ended", is_passing=True))
    assert passing.availability is Availability.FAILED
    assert not passing.lasts
    assert "correct" not in passing.message


def test_a_long_expression_is_shortened_in_messages() -> None:
    long = HealthCheck("x" * LONGEST, "the annotation")
    assert len(observation(long, False).message) < 300


def test_a_file_maps_kinds_to_expressions() -> None:
    content = b"""
    Database.example.com: self.status.phase == 'Ready'
    Deployment.apps: |
      self.status.readyReplicas >= 1
    ConfigMap: has(self.data)
    """
    assert read_health_checks(content, "checks.yaml") == {
        ("example.com", "Database"): "self.status.phase == 'Ready'",
        ("apps", "Deployment"): "self.status.readyReplicas >= 1\n",
        ("", "ConfigMap"): "has(self.data)",
    }
    assert read_health_checks(b"", "checks.yaml") == {}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"- a", "must be a mapping from KIND.GROUP to an expression"),
        (b"text", "must be a mapping"),
        (b"{", "checks.yaml"),
        (b"databases.example.com: 'true'", "must be KIND or KIND.GROUP"),
        (b"Database.: 'true'", "must be KIND or KIND.GROUP"),
        (b"example.com/Database: 'true'", "must be KIND or KIND.GROUP"),
        (b"1: 'true'", "must be KIND or KIND.GROUP"),
        (b"Database.example.com: true", "must be an expression"),
        (b"Database.example.com:", "must be an expression"),
        (b"Database.example.com: " + b"x" * (LONGEST + 1), "at most"),
    ],
)
def test_a_file_of_another_form_is_refused(content: bytes, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_health_checks(content, "checks.yaml")
    assert error in str(caught.value)
    assert "checks.yaml" in str(caught.value)


def test_an_invalid_expression_does_not_stop_the_agent() -> None:
    assert read_health_checks(b"Database.example.com: 1 +", "f") == {
        ("example.com", "Database"): "1 +"
    }


def test_the_flag_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checks.yaml"
    path.write_text("Database.example.com: 'true'")
    settings = parse(MemberSettings, [f"--health-checks={path}"])
    assert settings.read_health_checks() == {("example.com", "Database"): "true"}
    assert parse(MemberSettings, []).read_health_checks() == {}
    absent = parse(MemberSettings, [f"--health-checks={path}.bak"])
    with pytest.raises(ConfigError, match=r"--health-checks.*cannot read the file"):
        absent.read_health_checks()
