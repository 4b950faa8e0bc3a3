"""Admission of the hub: decisions about requests, the webhook server, and its registration.

Each decision is a pure function of an AdmissionReview's request and of the objects that its handler
has read.
"""
