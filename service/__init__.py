"""The Headrace service: streams text generation over gRPC in front of an engine."""

from importlib.metadata import version

__version__ = version("headrace-server")
