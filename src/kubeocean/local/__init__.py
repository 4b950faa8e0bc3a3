"""Real Kubernetes clusters on this machine, for `kubeocean up` and for the tests."""

__all__: list[str] = []
