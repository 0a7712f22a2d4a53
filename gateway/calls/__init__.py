"""What is in flight: exchanges, conversations, live sessions, questions."""
