"""What tests share: a running gateway, raw clients, servers that misbehave on order."""
