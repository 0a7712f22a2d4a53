"""Looks a configuration and its surroundings over before people do: each finding says what to do about it."""
