"""The explanations of explain: why a node, a pod or a binding is in its state."""

__all__: list[str] = []
