"""Environments, fault injection, strategies and processes that several tests share."""
