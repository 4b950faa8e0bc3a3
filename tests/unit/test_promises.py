"""Which test proves what: each promise and each known mistake has tests of its own.

The tables are for people who ask; what is tested here is that the tests they name exist.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
PODS: Final = "cluster/syncer/test_pods.py"
FAULTS: Final = "cluster/syncer/test_pods_faults.py"
OTHERS: Final = "cluster/syncer/test_pods_others.py"
PROMISES: Final = "cluster/syncer/test_pods_promises.py"
REFUSED: Final = "cluster/syncer/test_pods_refused.py"
SYNCER: Final = "cluster/syncer"
FORGE: Final = "unit/syncer/forge"
LEASING: Final = "unit/leasing"

# What other systems got wrong
MISTAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "a stale list at the start makes live pods look dangling": (
        f"{PROMISES}::test_a_stale_list_at_the_start_makes_no_pod_look_dangling",
        f"{PROMISES}::test_an_old_list_makes_no_new_pod_look_dangling",
        f"{SYNCER}/test_copies.py::test_a_cache_that_knows_too_little_removes_nothing",
        f"{SYNCER}/test_sweep.py::test_what_the_cache_does_not_show_is_not_removed",
    ),
    "a fail-over replays an old deletion": (
        f"{PROMISES}::test_an_old_deletion_is_not_replayed_on_a_new_pod_of_that_name",
    ),
    "a crash between two writes leaves an orphan or makes a double": (
        f"{FAULTS}::test_a_crash_after_any_single_write_changes_nothing",
        f"{FAULTS}::test_whatever_happened_every_physical_pod_was_made_once",
    ),
    "an eviction that was decided in an outage is carried out after it": (
        f"{PROMISES}::test_nothing_decided_while_a_worker_flaps_is_done_afterwards",
        f"{SYNCER}/test_unreachable.py::test_it_is_back_within_15_seconds_and_no_pod_was_lost",
    ),
    "a pod that is evicted below stays Running above": (
        f"{PROMISES}::test_a_pod_that_is_evicted_below_does_not_stay_running_above",
        f"{PROMISES}::test_a_controller_above_replaces_a_pod_that_is_lost_below",
    ),
    "a node that is deleted and made again loses its lease": (
        f"{SYNCER}/test_leases.py::test_a_lease_that_is_gone_or_replaced_is_put_right",
        f"{SYNCER}/test_nodes.py::test_a_virtual_node_deleted_by_hand_comes_back",
        f"{PROMISES}::test_a_virtual_node_that_is_deleted_and_made_again_keeps_its_pods",
    ),
    "the virtual node outlives its node": (
        f"{SYNCER}/test_nodes.py::test_a_node_that_goes_takes_its_virtual_node_along",
        f"{SYNCER}/test_nodes.py::test_what_went_while_nobody_looked_is_taken_back",
    ),
    "a finalizer blocks the end when the other side does not answer": (
        f"{SYNCER}/test_unreachable.py"
        "::test_a_binding_that_is_deleted_meanwhile_ends_and_says_what_it_does_not_know",
        f"{SYNCER}/test_copies.py::test_a_binding_can_end_without_its_worker",
    ),
    "pods that ended still count": (
        f"{LEASING}/test_requests.py::test_a_pod_that_ended_requests_nothing",
        f"{SYNCER}/test_capacity.py::test_what_is_offered_is_what_was_computed_by_hand",
    ),
    "a limit below what runs causes evictions": (
        f"{LEASING}/test_capacity.py::test_what_is_offered_keeps_every_promise",
        f"{LEASING}/test_capacity.py::test_an_offer_lifted_to_use_keeps_the_notation_of_the_node",
    ),
    "lending and taking back swing to and fro": (
        f"{LEASING}/test_reclaim_properties.py"
        "::test_a_window_that_flutters_evicts_no_more_often_than_the_node_cools_down",
    ),
    "two replicas are active": (
        f"{FAULTS}::test_two_active_leaders_end_where_one_does",
        f"{PROMISES}::test_at_most_one_physical_pod_runs_for_a_virtual_uid",
    ),
    "names are too long, end badly or collide": (
        "unit/api/test_naming.py::test_copies_have_dns_names",
        "unit/api/test_naming.py::test_other_names_give_other_names",
        f"{PODS}::test_pods_with_long_and_dotted_names_run",
        f"{PROMISES}::test_the_same_names_of_two_namespaces_and_bindings_are_different_pods",
    ),
    "watches expire, say nothing or come back all at once": (
        f"{PROMISES}::test_watches_that_break_all_the_time_make_no_storm",
        f"{FAULTS}::test_missed_events_change_nothing_once_both_sides_are_listed_again",
        "cluster/test_watch.py::test_a_compacted_version_is_listed_again",
    ),
    "a restart asks for everything again": (
        f"{PODS}::test_a_second_run_writes_nothing",
        f"{SYNCER}/test_copies.py::test_after_a_restart_nothing_is_read_or_written",
        f"{SYNCER}/test_tokens.py::test_after_a_restart_good_tokens_are_not_asked_for_again",
    ),
}

# What we promise
GUARANTEES: Final[Mapping[str, tuple[str, ...]]] = {
    "at most one": (f"{PROMISES}::test_at_most_one_physical_pod_runs_for_a_virtual_uid",),
    "no foreign harm": (
        f"{PROMISES}::test_nothing_that_is_not_ours_is_changed_or_deleted",
        f"{OTHERS}::test_a_foreign_pod_of_our_name_is_never_touched",
        f"{OTHERS}::test_two_bindings_on_one_worker_leave_each_other_alone",
    ),
    "eventually stable": (
        f"{FAULTS}::test_eventually_both_sides_match_and_then_nothing_is_written_for_20_s",
    ),
    "deletion ends": (
        f"{PROMISES}::test_a_forced_deletion_ends_above_at_once_and_below_when_the_worker_is_back",
        f"{SYNCER}/test_unreachable.py"
        "::test_a_binding_that_is_deleted_meanwhile_ends_and_says_what_it_does_not_know",
    ),
    "the lease is honoured": (
        f"{LEASING}/test_capacity.py::test_what_is_offered_keeps_every_promise",
        f"{SYNCER}/test_reclaim.py"
        "::test_windows_close_and_open_on_time_and_pods_leave_by_the_rules",
    ),
    "bounded lag": (f"{PROMISES}::test_how_far_each_side_is_behind_is_measured_and_told",),
    "safe failure": (
        f"{PROMISES}::test_an_unreachable_worker_loses_nothing_and_recovery_resumes",
        f"{SYNCER}/test_unreachable.py::test_its_nodes_become_not_ready_and_nothing_is_deleted",
    ),
}

# How a pod is translated: the rows of the table, and what the earlier implementation left out
TRANSLATION: Final[Mapping[str, tuple[str, ...]]] = {
    "node, affinity, selectors, scheduler, priority, account, pull secrets, host aliases": (
        f"{FORGE}/test_pods.py::test_a_field_is_translated",
        f"{FORGE}/test_pods.py::test_a_pod_that_is_placed_directly_has_its_node_and_no_affinity",
        f"{FORGE}/test_pods.py::test_the_binding_may_name_another_priority_class",
    ),
    "all else is copied": (
        f"{FORGE}/test_pods.py::test_a_field_is_copied_as_it_is",
        f"{FORGE}/test_pods.py"
        "::test_ports_probes_and_resources_of_a_container_are_copied_as_they_are",
    ),
    "host names, also of names with dots or 253 characters": (
        f"{FORGE}/test_pods.py::test_a_pod_is_called_by_its_name_as_far_as_a_host_name_goes",
    ),
    "volumes, tokens (also several of a volume), ephemeral volumes, CSI and old kinds": (
        f"{FORGE}/test_podvolumes.py::test_a_volume_is_translated",
        f"{FORGE}/test_references.py::test_each_token_of_a_volume_is_one_of_its_own",
        f"{FORGE}/test_volumes.py::test_every_secret_of_a_driver_is_renamed_with_its_namespace",
        f"{FORGE}/test_volumes.py::test_old_kinds_of_volumes_name_secrets_too",
    ),
    "downward API, also UID and service account": (
        f"{FORGE}/test_podenv.py::test_a_value_comes_from_where_it_comes_from_above",
        f"{FORGE}/test_podenv.py::test_the_questions_to_annotations_have_answers",
    ),
    "environment: copies, the API server, the host name, Services": (
        f"{FORGE}/test_podenv.py::test_whole_copies_are_read_by_their_names_below",
        f"{FORGE}/test_podenv.py::test_all_containers_are_told_of_the_server_and_of_services",
        f"{FORGE}/test_podenv.py::test_the_host_name_is_the_pods_name",
        f"{FORGE}/test_podenv.py"
        "::test_what_comes_from_whole_objects_wins_over_services_and_loses_to_the_containers_own",
    ),
    "DNS: merged, hostNetwork, cluster domain": (
        f"{FORGE}/test_poddns.py::test_a_policy_means_the_computing_clusters_dns_or_the_nodes",
        f"{FORGE}/test_poddns.py::test_what_a_pod_configures_is_added",
        f"{FORGE}/test_poddns.py::test_search_domains_follow_the_cluster_domain",
    ),
    "ephemeral containers with references": (
        f"{FORGE}/test_podchanges.py::test_a_debugger_comes_with_all_that_other_containers_have",
    ),
    "privileges, by pods and by volumes": (
        f"{FORGE}/test_pods.py::test_a_privilege_is_refused_only_where_the_binding_says_so",
        f"{FORGE}/test_pods.py"
        "::test_a_volume_that_is_a_directory_of_the_node_needs_the_same_privilege",
    ),
    "addresses of the computing cluster, live": (
        f"{SYNCER}/test_surroundings.py::test_addresses_of_the_load_balancers_are_followed",
    ),
    "whatever is accepted above runs below, or says why not": (
        f"{SYNCER}/test_forge.py"
        "::test_whatever_is_accepted_above_is_accepted_below_or_refused_with_a_reason",
        f"{REFUSED}::test_bad_input_is_told_and_tried_ever_more_rarely_and_runs_when_it_can",
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize(("table", "rows"), [(MISTAKES, 15), (GUARANTEES, 7), (TRANSLATION, 11)])
def test_what_is_said_to_be_proven_has_its_tests(
    table: Mapping[str, tuple[str, ...]], rows: int
) -> None:
    assert len(table) == rows
    named = {test for tests in table.values() for test in tests}
    missing = {test for test in named if (at := test.partition("::"))[2] not in names_in(at[0])}
    assert missing == set()
