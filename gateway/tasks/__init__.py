"""Tasks: calls that go on after they were answered with a handle, made here or by a server."""
