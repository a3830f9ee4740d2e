"""The HTML page: `data.py` collects what it knows, `html.py` puts it into one file with the scripts beside them."""
