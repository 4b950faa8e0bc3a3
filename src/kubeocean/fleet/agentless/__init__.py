"""Members without an agent: worker clusters of bindings, played by the binding's syncer.

`bindings` is the hub's controller: it creates a MemberCluster for each binding that is to be a
member, and `plan` decides about one binding. `member` runs a member's agent in the process of a
syncer, with the kubeconfig of the binding.
"""
