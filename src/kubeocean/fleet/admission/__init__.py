"""Admission of the hub: decisions about requests, the webhook server, and what it registers.

Each decision is a pure function of a request and of what was looked up for it.
"""
