"""Whose a call is, and what that tenant may use. Knows neither gRPC nor the wire."""
