"""Real nodes of local clusters: a kubelet and containerd in namespaces of their own."""

__all__: list[str] = []
