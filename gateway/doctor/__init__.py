"""Check a configuration, its store, servers and surroundings. Each finding says what to do about it."""
