"""Tasks that the gateway makes of calls of ordinary servers."""
