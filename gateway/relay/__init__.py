"""Relay the requests of clients to servers, and the replies of servers to clients."""
