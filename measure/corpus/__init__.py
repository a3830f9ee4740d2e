"""Real architectures and odd networks, exported by both exporters and verified: `make corpus`."""
