"""Every client against the same server and the same expectations: clients/conformance.yaml."""
