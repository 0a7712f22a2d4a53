"""Serve pages and documents that need no credential of an MCP client: the home page, pages for consent, and server
cards."""
