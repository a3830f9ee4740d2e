"""What a node does, and in which layer: found from dataflow, never from names."""
