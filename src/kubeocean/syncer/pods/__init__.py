"""Pods of the computing cluster that run in the worker cluster."""

__all__: list[str] = []
