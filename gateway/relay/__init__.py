"""From a request of the wire to an exchange and its reply."""
