"""The official conformance suite against the gateway."""
