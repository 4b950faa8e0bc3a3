"""The scheduler: decides which member clusters get the objects of a placement.

Pure except for `controller`: no clock is read and no request is sent. The controller makes views of
the objects in its caches (`views`), calls `schedule`, and writes the documents and patches of the
returned difference (`documents`). Views and results are immutable: with many clusters the
controller calls `schedule` in a thread, so that the event loop is not blocked.

A cycle takes one policy snapshot, all member clusters and the bindings of the placement:

1. Classify the bindings (`bindings`). Those on clusters that left are marked Unscheduled; those
   under deletion lose the scheduler's finalizer.
2. PreFilter and Filter (`profile`): each cluster passes the filters in a fixed order, and the
   first refusal counts: ClusterAffinity (required terms over labels and properties),
   ClusterEligibility (heartbeat, joined, healthy), NamespaceAffinity (for placements of a
   namespace), TaintToleration, SamePlacementAffinity (the cluster has a current binding and is
   neither a candidate nor rejected), TopologySpreadConstraints (DoNotSchedule).
3. PreScore and Score: the tuple (topology spread, affinity, 1 for an obsolete binding), compared
   part by part; of equal scores the larger name is better.
4. PostBatch and picking (`picking`): with topology spread constraints one cluster at a time, since
   each pick changes the spread; else all at once.
5. Binding (`bindings`): the obsolete or unscheduled binding of a picked cluster is patched to refer
   to this policy snapshot; without one, a new binding is created. Obsolete bindings of other
   clusters are marked Unscheduled.
6. Decisions and the condition Scheduled (`decisions`) become the status of the policy snapshot.

PickAll runs 1, 2, 5, 6; PickN all of them, or none but 1 and 6 if it has enough clusters;
PickFixed replaces 2 to 4 by its list of names and eligibility (`modes`).

Decisions are sticky: a binding made under the current policy snapshot stays when labels, taints,
properties or health of its cluster change. A policy change makes all bindings obsolete and starts
over, with a preference for clusters that have an obsolete binding.

A value that cannot be read (a property that is no quantity, an unknown operator) rejects one
cluster or one term and never ends the cycle. A policy that cannot be read at all is left undecided
with its bindings in place.

`schedule` explains each of its decisions; `explain` adds the results of the other filters.
"""

from kubeocean.fleet.scheduler.bindings import (
    BindingChanges,
    BindingPatch,
    NewBinding,
    UnscheduleCause,
    Unscheduling,
)
from kubeocean.fleet.scheduler.cycle import explain, schedule
from kubeocean.fleet.scheduler.decisions import SnapshotStatus
from kubeocean.fleet.scheduler.documents import (
    binding_document,
    binding_patch,
    release_patch,
    snapshot_status,
    unschedule_patch,
)
from kubeocean.fleet.scheduler.eligibility import ineligibility
from kubeocean.fleet.scheduler.explanation import Explanation, Outcome
from kubeocean.fleet.scheduler.framework import Rejection
from kubeocean.fleet.scheduler.model import (
    AgentView,
    BindingView,
    ClusterTerm,
    MemberView,
    PolicyView,
    PreferredTerm,
    read_term_selector,
)
from kubeocean.fleet.scheduler.modes import Schedule
from kubeocean.fleet.scheduler.triggers import Trigger, Verdicts, concerns, trigger
from kubeocean.fleet.scheduler.views import view_binding, view_member, view_policy

__all__ = [
    "AgentView",
    "BindingChanges",
    "BindingPatch",
    "BindingView",
    "ClusterTerm",
    "Explanation",
    "MemberView",
    "NewBinding",
    "Outcome",
    "PolicyView",
    "PreferredTerm",
    "Rejection",
    "Schedule",
    "SnapshotStatus",
    "Trigger",
    "UnscheduleCause",
    "Unscheduling",
    "Verdicts",
    "binding_document",
    "binding_patch",
    "concerns",
    "explain",
    "ineligibility",
    "read_term_selector",
    "release_patch",
    "schedule",
    "snapshot_status",
    "trigger",
    "unschedule_patch",
    "view_binding",
    "view_member",
    "view_policy",
]
