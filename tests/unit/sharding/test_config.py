"""Configuration: the document's keys and defaults, and errors that name the key and the value."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms import ShardRange
from kubeocean.sharding.config import Config, load, read_config

DOCUMENT = """
sharding:
  algorithm: "consistent-hash"
  virtualNodes: 150
  rebalanceThreshold: 0.1
  rebalanceInterval: "30s"
node:
  healthCheckInterval: "10s"
  healthCheckTimeout: "5s"
  nodeTimeout: "60s"
state:
  syncInterval: "10s"
  leaseDuration: "15s"
  renewDeadline: "10s"
  retryPeriod: "2s"
metrics:
  enabled: true
  port: 8080
  path: "/metrics"
logging:
  level: "info"
  format: "json"
"""


def read(text: str) -> Config:
    return read_config(yaml.safe_load(text), source="config.yaml")


def test_the_document_s_file_is_the_default_but_for_the_algorithm() -> None:
    written, default = read(DOCUMENT), Config()
    assert written.sharding.algorithm == "consistent-hash"
    assert default.sharding.algorithm == "slots"
    for section in ("node", "state", "metrics", "logging"):
        assert getattr(written, section) == getattr(default, section)
    assert (written.sharding.virtual_nodes, written.sharding.rebalance_threshold) == (150, 0.1)
    assert written.sharding.rebalance_interval_s == 30
    assert (written.state.lease_s, written.state.renew_s, written.state.retry_s) == (15, 10, 2)
    assert written.node.node_timeout_s == 60


def test_a_section_and_a_key_may_be_left_out() -> None:
    assert read("") == Config(source="config.yaml")
    assert read("sharding:\nnode:\n  capacity: 2").node.capacity == 2.0


def test_ranges_that_tile_are_taken() -> None:
    config = read(
        "sharding: {algorithm: range, slots: 3, ranges: "
        "[{end: g, shard: 0}, {start: g, end: p, shard: 2}, {start: p, shard: 1}]}"
    )
    assert config.sharding.ranges == (
        ShardRange("", "g", 0),
        ShardRange("g", "p", 2),
        ShardRange("p", "", 1),
    )


def test_an_algorithm_may_be_named_by_its_import_path() -> None:
    config = read("sharding: {algorithm: custom, custom: 'my.package:Algorithm'}")
    assert config.sharding.custom == "my.package:Algorithm"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("sharding: {algorithm: rendezvous}", "sharding.algorithm", "'rendezvous'"),
        ("sharding: {algorithm: custom}", "sharding.custom", "required"),
        ("sharding: {custom: 'my package:X'}", "sharding.custom", "package.module:Class"),
        ("sharding: {slots: 0}", "sharding.slots", "(got 0)"),
        ("sharding: {slots: 70000}", "sharding.slots", "at most 65536"),
        ("sharding: {namespace: 'a b'}", "sharding.namespace", "name of a namespace"),
        ("sharding: {namespace: ''}", "sharding.namespace", "(got '')"),
        ("sharding: {namespace: ../x}", "sharding.namespace", "(got '../x')"),
        ("sharding: {virtualNodes: 1000000000}", "sharding.virtualNodes", "at most 10000"),
        ("sharding: {virtualNodes: many}", "sharding.virtualNodes", "whole number"),
        ("sharding: {virtualNode: 1}", "sharding.virtualNode", "did you mean virtualNodes?"),
        ("shardings: {}", "shardings", "did you mean sharding?"),
        ("colour: blue", "colour", "there are sharding, node, state"),
        ("sharding: {rebalanceThreshold: 0}", "sharding.rebalanceThreshold", "more than 0"),
        ("sharding: {rebalanceInterval: 30}", "sharding.rebalanceInterval", "duration such as"),
        ("sharding: {rebalanceInterval: 0s}", "sharding.rebalanceInterval", "more than 0"),
        ("sharding: {churnBudget: 2}", "sharding.churnBudget", "at most 1"),
        ("sharding: {ring: 'A b'}", "sharding.ring", "lower-case"),
        ("sharding: {ring: " + "a" * 41 + "}", "sharding.ring", "40 characters"),
        ("sharding: {algorithm: range}", "sharding.ranges", "required"),
        ("sharding: {ranges: [{shard: 0}]}", "sharding.ranges", "for the algorithm range only"),
        ("sharding: [1]", "sharding", "must be a mapping"),
        ("state: {renewDeadline: 15s}", "state.renewDeadline", "shorter than state.leaseDuration"),
        ("state: {renewDeadline: 20s}", "state.renewDeadline", "(got '20s')"),
        ("state: {retryPeriod: 9s}", "state.renewDeadline", "retryPeriod"),
        ("state: {leaseDuration: soon}", "state.leaseDuration", "(got 'soon')"),
        ("node: {nodeTimeout: 5s}", "node.nodeTimeout", "at least state.leaseDuration"),
        ("state: {retryPeriod: 1ms}", "state.retryPeriod", "at least 0.1s (got '1ms')"),
        ("state: {syncInterval: 1ms}", "state.syncInterval", "at least 0.1s (got '1ms')"),
        ("node: {capacity: 0}", "node.capacity", "more than 0"),
        ("node: {identity: " + "a" * 254 + "}", "node.identity", "at most 253 characters"),
        ('node: {identity: "a\\e[2Jb"}', "node.identity", "that can be printed"),
        ('node: {address: "a\\nb"}', "node.address", "that can be printed"),
        ("node: {capacity: 1000000000}", "node.capacity", "from 0.001 to 1000"),
        ("sharding: {drainDeadline: 1m}", "sharding.handoverDeadline", "(65s) (got '60s')"),
        ("metrics: {enabled: 'yes'}", "metrics.enabled", "true or false"),
        ("metrics: {port: 70000}", "metrics.port", "at most 65535"),
        ("metrics: {path: metrics}", "metrics.path", "begin with /"),
        ("metrics: {path: /a b}", "metrics.path", "letters, digits"),
        ("metrics: {path: '/{x'}", "metrics.path", "letters, digits"),
        ("logging: {level: loud}", "logging.level", "error, warning, info, debug"),
        ("logging: {format: xml}", "logging.format", "json, console"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_the_value(text: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(f"config.yaml: {key}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ranges", "key", "message"),
    [
        ("[{end: m, shard: 0}, {start: g, shard: 1}]", "ranges[1].start", "overlaps"),
        ("[{shard: 0}, {start: g, shard: 1}]", "ranges[1].start", "has no end"),
        ("[{end: g, shard: 0}, {start: m, shard: 1}]", "ranges[1].start", "gap"),
        ("[{start: a, shard: 0}]", "ranges[0].start", "gap"),
        ("[{end: g, shard: 0}]", "ranges[0].end", "reach the end"),
        ("[{start: '', end: g, shard: 0}, {start: g, end: b, shard: 1}]", "ranges[1].end", "after"),
        ("[{shard: 5}]", "ranges[0].shard", "below sharding.slots (2)"),
        ("[{end: ''}]", "ranges[0].shard", "required"),
        ("[{shard: 0, ends: x}]", "ranges[0].ends", "did you mean"),
        ("[a]", "ranges[0]", "mapping"),
        ("a", "ranges", "must be a list"),
    ],
)
def test_ranges_that_do_not_tile_are_refused(ranges: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"sharding: {{algorithm: range, slots: 2, ranges: {ranges}}}")
    assert f"sharding.{key}: " in str(caught.value)
    assert message in str(caught.value)


def test_the_file_is_the_one_that_the_environment_names(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("sharding: {ring: mine}")
    assert load({"CONFIG_FILE": str(path)}).sharding.ring == "mine"
    assert load({}) == Config()


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CONFIG_FILE: cannot be read: No such file"):
        load({"CONFIG_FILE": str(tmp_path / "none.yaml")})


def test_a_file_that_is_no_yaml_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: [")
    with pytest.raises(ConfigError, match=r"config\.yaml: is not a YAML document"):
        load({"CONFIG_FILE": str(path)})


def test_a_key_that_is_written_twice_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("sharding:\n  slots: 8\n  ring: mine\n  slots: 16\n")
    with pytest.raises(ConfigError, match=r"slots: is written twice, the second time in line 4"):
        load({"CONFIG_FILE": str(path)})


def test_a_document_has_to_be_a_mapping() -> None:
    with pytest.raises(ConfigError, match="mapping of sections"):
        read("[a]")
