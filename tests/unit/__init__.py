"""Tests of single modules: no processes, no network. The folders are those of the rooms."""
