"""The tests. `requirements.toml` lists what they prove."""
