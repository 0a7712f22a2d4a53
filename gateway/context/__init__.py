"""Make what a session's servers get from it: facts (in variables and `_meta`), secrets, folders, and access to its
state."""
