"""Values and rules of a generation, with the standard library only.

Nothing here knows gRPC, HTTP, an engine or a clock other than the one that it
is handed.
"""
