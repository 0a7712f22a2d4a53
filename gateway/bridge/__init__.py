"""Translate calls, questions, subscriptions and `requestState` between clients and servers of different eras of MCP
(legacy: up to 2025-11-25; modern: 2026-07-28)."""
