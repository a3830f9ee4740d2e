"""Results as JSON and CSV (`results.py`, by the notation of `fields.py`), as a trace, and read back (`overlays.py`)."""
