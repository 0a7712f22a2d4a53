"""What tests share: a gateway process, clients that write raw messages, and servers that misbehave on request."""
