"""Give sessions to other programs: with a gateway inside them, or without a gateway."""
