"""Handle tasks: calls that continue after their client was answered with a task id (handle). The gateway or a server
creates them."""
