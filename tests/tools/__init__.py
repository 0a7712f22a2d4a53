"""What tests need beyond Python."""
