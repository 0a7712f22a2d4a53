"""The wires on which we reach upstreams."""
