"""Create and run the gateway's own tasks, for calls to servers that create none."""
