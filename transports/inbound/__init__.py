"""Receive the requests of clients and send them the answers: Streamable HTTP, HTTP+SSE and stdio."""
