"""Translate calls, questions, subscriptions and `requestState` between clients and servers of different eras of MCP."""
