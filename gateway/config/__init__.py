"""What an operator sets: values, where they are given, and the keys."""
