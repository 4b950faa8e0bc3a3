"""Objects that follow pods into the worker cluster, such as ConfigMaps, Secrets and claims."""

__all__: list[str] = []
