"""Every strategy on every architecture of the tests: `make strategies`."""
