"""The agent of a member: joins the hub, reports health and properties, applies Works, and leaves.

`report` computes the status of the InternalMemberCluster and is pure. `agent` holds the reconcile,
`collector` and `nodes` collect properties, `hub_access` and `tokens` provide the credentials for
the hub.
"""
