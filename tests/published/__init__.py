"""Published servers of npm and PyPI behind a gateway, each in a sandbox, driven by the SDK's client."""
