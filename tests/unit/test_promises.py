"""Tables of promises and known mistakes, each with the names of the tests that prove it.

The tests below check that every named test exists, here and on the page of promises of the design
documents, and that this page answers each line of the documents.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
PAGE: Final = TESTS.parent / "docs/reference/promises.md"
SOURCES: Final = TESTS.parent / "src/kubeocean"
ANSWERS: Final = ("kept", "differently", "not yet")

# Mistakes of other systems
MISTAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "a stale list at the start makes live pods look dangling": (
        "test_a_stale_list_at_the_start_makes_no_pod_look_dangling",
        "test_an_old_list_makes_no_new_pod_look_dangling",
        "test_a_cache_that_knows_too_little_removes_nothing",
        "test_an_object_that_only_the_cache_lacks_is_not_removed",
    ),
    "a fail-over replays an old deletion": (
        "test_an_old_deletion_is_not_replayed_on_a_new_pod_of_that_name",
    ),
    "a crash between two writes leaves an orphan or makes a double": (
        "test_a_crash_after_any_write_changes_nothing",
        "test_every_physical_pod_was_created_once_under_every_fault",
    ),
    "an eviction that was decided in an outage is carried out after it": (
        "test_no_decision_from_the_time_a_worker_flapped_is_executed_afterwards",
        "test_a_worker_is_back_within_15_seconds_and_no_pod_was_lost",
    ),
    "a pod that is evicted in the worker stays Running in the computing cluster": (
        "test_a_pod_that_is_evicted_in_the_worker_does_not_stay_running",
        "test_a_controller_replaces_a_pod_that_is_lost_in_the_worker",
    ),
    "a node that is deleted and made again loses its lease": (
        "test_a_lease_that_is_deleted_or_replaced_is_created_again",
        "test_a_virtual_node_deleted_by_hand_comes_back",
        "test_a_virtual_node_that_is_deleted_and_created_again_keeps_its_pods",
    ),
    "the virtual node outlives its node": (
        "test_the_virtual_node_of_a_deleted_node_is_deleted",
        "test_virtual_nodes_of_nodes_and_policies_deleted_meanwhile_are_reclaimed_at_the_start",
    ),
    "a finalizer blocks the end when the other side does not answer": (
        "test_a_binding_that_is_deleted_during_the_outage_ends_and_reports_what_is_unconfirmed",
        "test_a_binding_can_end_without_its_worker",
    ),
    "pods that ended still count": (
        "test_a_pod_that_ended_requests_nothing",
        "test_what_is_offered_is_what_was_computed_by_hand",
    ),
    "a limit below what runs causes evictions": (
        "test_what_is_offered_keeps_every_promise",
        "test_an_offer_lifted_to_use_keeps_the_notation_of_the_node",
    ),
    "lending and taking back swing to and fro": (
        "test_a_window_that_flutters_evicts_no_more_often_than_the_node_cools_down",
    ),
    "two replicas are active": (
        "test_two_active_leaders_end_where_one_does",
        "test_at_most_one_physical_pod_runs_for_a_virtual_uid",
    ),
    "names are too long, end badly or collide": (
        "test_copies_have_dns_names",
        "test_other_names_give_other_names",
        "test_pods_with_long_and_dotted_names_run",
        "test_the_same_names_of_two_namespaces_and_bindings_are_different_pods",
    ),
    "watches expire, say nothing or come back all at once": (
        "test_watches_that_break_all_the_time_make_no_storm",
        "test_missed_events_change_nothing_once_both_clusters_are_listed_again",
        "test_a_compacted_version_is_listed_again",
    ),
    "a restart asks for everything again": (
        "test_a_restarted_syncer_writes_nothing",
        "test_after_a_restart_nothing_is_read_or_written",
        "test_after_a_restart_good_tokens_are_not_requested_again",
    ),
}

# Guarantees of Kubeocean
GUARANTEES: Final[Mapping[str, tuple[str, ...]]] = {
    "at most one": ("test_at_most_one_physical_pod_runs_for_a_virtual_uid",),
    "no foreign harm": (
        "test_nothing_that_is_not_ours_is_changed_or_deleted",
        "test_a_foreign_pod_of_our_name_is_never_touched",
        "test_two_bindings_on_one_worker_do_not_change_each_others_pods",
    ),
    "eventually stable": ("test_both_clusters_match_in_the_end_and_nothing_is_written_for_20_s",),
    "deletion ends": (
        "test_a_forced_deletion_reaches_the_worker_when_it_is_back",
        "test_a_binding_that_is_deleted_during_the_outage_ends_and_reports_what_is_unconfirmed",
        "test_caches_of_the_worker_that_never_sync_do_not_hold_up_the_deletion_of_a_binding",
        "test_node_patches_that_fail_do_not_hold_up_the_deletion_of_a_binding",
        "test_a_foreign_finalizer_on_a_pod_does_not_hold_up_the_deletion_of_a_binding",
    ),
    "the lease is honoured": (
        "test_what_is_offered_keeps_every_promise",
        "test_windows_close_and_open_on_time_and_pods_leave_by_the_rules",
        "test_the_pace_holds_for_all_nodes_of_a_policy_together",
    ),
    "bounded lag": ("test_the_lag_of_each_cluster_is_measured",),
    "safe failure": (
        "test_an_unreachable_worker_loses_nothing_and_recovery_resumes",
        "test_nodes_of_a_dead_worker_become_not_ready_and_nothing_is_deleted",
        "test_a_worker_without_service_gets_no_heartbeats_and_loses_nothing",
        "test_an_expired_token_loses_nothing_and_a_new_one_needs_no_restart",
    ),
}

# Rules of the translation of a pod into the worker
TRANSLATION: Final[Mapping[str, tuple[str, ...]]] = {
    "node, affinity, selectors, scheduler, priority, account, pull secrets, host aliases": (
        "test_a_field_is_translated",
        "test_a_directly_scheduled_pod_has_a_node_name_and_no_affinity",
        "test_the_binding_may_name_another_priority_class",
    ),
    "all else is copied": (
        "test_a_field_is_copied_as_it_is",
        "test_ports_probes_and_resources_of_a_container_are_copied_as_they_are",
    ),
    "host names, also of names with dots or 253 characters": (
        "test_the_hostname_is_the_pods_name_shortened_to_a_label",
    ),
    "volumes, tokens (also several of a volume), ephemeral volumes, CSI and old kinds": (
        "test_a_volume_is_translated",
        "test_each_token_of_a_volume_has_a_secret_of_its_own",
        "test_secrets_of_a_driver_are_renamed_and_those_of_its_controllers_stay",
        "test_secrets_of_in_tree_volumes_are_renamed_with_their_namespace",
    ),
    "downward API, also UID and service account": (
        "test_a_value_from_an_object_is_read_from_its_copy",
        "test_redirected_fields_have_the_values_of_the_virtual_pod",
    ),
    "environment: copies, the API server, the host name, Services": (
        "test_env_from_names_copies",
        "test_all_containers_have_variables_of_the_api_server_and_of_services",
        "test_the_host_name_is_the_pods_name",
        "test_env_from_overrides_services_and_is_overridden_by_env",
    ),
    "DNS: merged, hostNetwork, cluster domain": (
        "test_a_dns_policy_selects_the_computing_clusters_dns_or_the_nodes",
        "test_the_dns_config_of_a_pod_is_merged",
        "test_search_domains_follow_the_cluster_domain",
    ),
    "ephemeral containers with references": (
        "test_an_ephemeral_container_gets_the_environment_of_other_containers",
    ),
    "privileges, by pods and by volumes": (
        "test_a_privilege_is_refused_only_if_the_binding_denies_it",
        "test_a_volume_that_is_a_directory_of_the_node_needs_the_same_privilege",
    ),
    "addresses of the computing cluster, live": (
        "test_the_addresses_follow_the_load_balancers_of_the_services",
    ),
    "every pod that the computing cluster accepts runs in the worker, or has a reason": (
        "test_every_valid_pod_is_accepted_by_the_worker_or_refused_with_a_reason",
        "test_bad_input_is_reported_and_retried_ever_more_rarely_and_runs_when_it_can",
    ),
}


@cache
def names_of_all_tests() -> frozenset[str]:
    return frozenset(
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("table", "rows"), [(MISTAKES, 15), (GUARANTEES, 7), (TRANSLATION, 11)])
def test_every_promise_names_tests_that_exist(
    table: Mapping[str, tuple[str, ...]], rows: int
) -> None:
    assert len(table) == rows
    named = {test for tests in table.values() for test in tests}
    assert named - names_of_all_tests() == set()


def tables_of_the_page() -> list[list[dict[str, str]]]:
    """Return the tables of promises on the page; a row is its cells by the names of columns."""
    tables = []
    for text in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()
        )
        if "promise" in head:
            tables.append([dict(zip(head, row, strict=True)) for row in rows])
    return tables


def lines_of(sections: str) -> int:
    """Return how many lines of a document a cell names: `4.5, 4.6 (2)` are three."""
    if sections == "–":
        return 0
    repeated = (int(number) - 1 for number in re.findall(r"\((\d+)\)", sections))
    return len(sections.split(", ")) + sum(repeated)


def test_every_test_on_the_page_of_promises_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named - names_of_all_tests() == set()


def test_every_module_on_the_page_of_promises_exists() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", PAGE.read_text()))
    roots = (SOURCES, TESTS.parent)
    missing = {
        path
        for path in paths
        if not any((root / f"{path}{end}").exists() for root in roots for end in ("", ".py"))
    }
    assert missing == set()


def test_every_row_of_the_page_has_an_answer() -> None:
    for row in (row for table in tables_of_the_page() for row in table):
        assert row["answer"] in ANSWERS, row
        assert row["where and why"] not in ("", "–"), row
        assert "`test_" in row["tests"] or row["answer"] == "not yet", row


def test_the_page_answers_every_line_and_counts_its_rows() -> None:
    design, architecture, fleet = tables_of_the_page()
    lines = (
        sum(lines_of(row["section"]) for row in design),
        sum(lines_of(row["section"]) for row in architecture),
        sum(lines_of(row["Tapestry"]) for row in architecture),
    )
    assert lines == (146, 159, 153)
    summary = re.findall(
        r"^\| the .* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M
    )
    counts = []
    for table in (design, architecture, fleet):
        answers = [row["answer"] for row in table]
        counts.append(tuple(map(str, (len(table), *map(answers.count, ANSWERS)))))
    assert summary == counts
