"""Every statement of the specification that binds somebody, and the test that shows that the gateway does it."""
