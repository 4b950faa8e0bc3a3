"""Members without an agent: worker clusters of ClusterBindings, whose syncer acts as the agent.

`bindings` is the hub's controller, which creates a MemberCluster for each binding that is to be a
member; `plan` decides about one binding. `member` runs a member's agent in the process of a
syncer, with the kubeconfig of the binding.
"""
