"""Decide which files, hosts and resources a server's processes may use, by profiles and by what their programs need."""
