"""The agent of a member: it joins the hub, reports health and properties, applies Works, leaves.

`report` computes the status of the InternalMemberCluster and is pure. `agent` holds the reconcile,
`collector` and `nodes` collect properties, `hub_access` and `tokens` are the ways to the hub.
"""
