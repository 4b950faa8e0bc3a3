"""What commands print for programs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from kubeocean.cli.output import Format, print_document
from kubeocean.local.state import ClusterState


@pytest.mark.parametrize(
    ("output", "read"), [(Format.JSON, json.loads), (Format.YAML, yaml.safe_load)]
)
def test_a_result_says_the_same_in_every_form(
    output: Format, read: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"who": "ä:\n- b", "none": None, "many": [1, 2.5, True]}
    print_document(plain | {"cluster": ClusterState("worker-1", "https://a", 3)}, output)
    cluster = {"context": "worker-1", "server": "https://a", "nodes": 3}
    assert read(capsys.readouterr().out) == plain | {"cluster": cluster}
