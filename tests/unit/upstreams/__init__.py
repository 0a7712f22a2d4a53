"""Tests of `gateway/upstreams`."""
