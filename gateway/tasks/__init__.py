"""Handle tasks: calls that go on after their client was answered with a handle. The gateway or a server makes them."""
