"""The configured servers: the eras they speak, what they list, and the links to them."""
