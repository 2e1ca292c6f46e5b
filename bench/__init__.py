"""Measures the whole path with the simulated engine: `make bench`."""
