"""Measures the Triton backend: what a token costs the service, and how soon a cancel stops the engine."""
