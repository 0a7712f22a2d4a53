"""Define the interfaces of a store backend, one family per module. `session_store.testing` has the contract tests."""
