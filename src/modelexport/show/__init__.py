"""What people and programs see: terminal text, JSON and CSV, the HTML page, formats of other viewers."""
