"""Questions about packages: what their files say, and whether they fit together."""
