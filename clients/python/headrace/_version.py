"""The version of the client, sent in the user agent. A test holds it equal to the packaging metadata."""

__version__ = "0.1.0"
