"""How fast the gateway is, beside what bounds it: `make bench`."""
