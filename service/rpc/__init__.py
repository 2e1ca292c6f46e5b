"""The gRPC edge: wire to values, errors to statuses, health, reflection, the server."""
