"""Make the facts and resources of a session that its servers get."""
