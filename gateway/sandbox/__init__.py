"""Decide what a server's processes may touch: by profiles, and by the paths that their programs need."""
