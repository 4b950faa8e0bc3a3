"""The view of status and top: its model, how it is built from a snapshot, and its pages."""

__all__: list[str] = []
