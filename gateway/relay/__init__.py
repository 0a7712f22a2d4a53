"""Relays the requests of clients to servers, and their replies to clients."""
