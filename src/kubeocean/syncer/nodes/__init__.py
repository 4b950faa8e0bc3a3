"""Virtual nodes: their capacity, heartbeats and evictions, and the policies that decide about them.

From the edge of a time window to an eviction:

1. `policies.PolicyController` wakes at the edge (`leasing.windows.next_edge`), writes the policy's
   status (`policy_status`) and enqueues every node.
2. `controller.NodeController` reconciles a node: `leasing.decision.decide` returns `WindowClosed`,
   from the policies in `policy_cache` (`leasing.cached_policy`, `leasing.policy_choice`).
3. `leasing.reclaim.plan_reclaim` makes a plan from the facts that `evictions.Evictor` collects: the
   taint, and a step for each pod (`leasing.taints` has the tolerations).
4. The controller writes the taint (`forge`), and `Evictor.carry_out` evicts the pods that are due.
5. `leasing.progress.report_of` summarizes the plan and its results; `reclaim_progress` keeps that
   until `PolicyController` has written it to the policy's status (`leasing.report`).
"""

__all__: list[str] = []
