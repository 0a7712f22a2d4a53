"""Parts put together, and run."""
