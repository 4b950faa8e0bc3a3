"""Inventory: a ClusterProfile of SIG-Multicluster's API for each member that has joined.

`profile` computes the profile and is pure; `controller` reads and writes.
"""
