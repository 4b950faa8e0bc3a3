"""Alert rules: promtool shows that each fires and resolves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"


@pytest.fixture(scope="module")
def promtool() -> str:
    """The path of promtool, which the set-up of `make test` has built where it was missing."""
    script = ROOT / "scripts" / "promtool"
    done = subprocess.run([script], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"promtool could not be built: {done.stderr}"
    return done.stdout.strip()


@pytest.mark.parametrize("words", ["check rules alerts.yaml", "test rules alerts.test.yaml"])
def test_the_rules_pass_promtool(promtool: str, words: str) -> None:
    done = subprocess.run(
        [promtool, *words.split()], cwd=MONITORING, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_shown_to_fire_and_then_to_resolve() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((MONITORING / "alerts.test.yaml").read_text())["tests"]
    shown = set()
    for test in tests:
        checks = [
            (each["alertname"], bool(each.get("exp_alerts"))) for each in test["alert_rule_test"]
        ]
        for name in alerts:
            states = [fires for alert, fires in checks if alert == name]
            if True in states and states[-1] is False:
                shown.add(name)
    assert shown == alerts
