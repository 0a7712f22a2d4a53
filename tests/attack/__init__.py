"""Attacks that are tried and refused."""
