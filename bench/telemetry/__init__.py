"""What telemetry costs: CPU of gateway and service with it against without it."""
