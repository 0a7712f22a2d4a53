"""Logs, metrics, spans and the audit trail."""
