"""What the documentation claims, measured: `python -m bench` writes docs/measured.md."""
