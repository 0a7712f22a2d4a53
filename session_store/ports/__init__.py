"""What a store backend must do, one family per module. `session_store.testing` has the contract tests."""
