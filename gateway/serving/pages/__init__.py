"""Serve what needs no credential: the page for people, and the cards of servers."""
