"""What both processes need to run: settings, logs, telemetry set-up, names of attributes.

Knows nothing of generations, gRPC or HTTP.
"""
