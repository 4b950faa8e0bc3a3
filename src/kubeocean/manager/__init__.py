"""The manager: reconciles the ClusterBindings of a computing cluster."""
