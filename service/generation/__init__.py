"""One generation from admission to its last event, for any backend and any wire.

Knows backends by their seam only; must not know gRPC or protobuf.
"""
