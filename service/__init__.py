"""The Headrace service: streams text generation over gRPC in front of an engine."""
