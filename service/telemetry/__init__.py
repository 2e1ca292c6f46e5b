"""Spans, metrics and the request log. Uses the OpenTelemetry API only."""
