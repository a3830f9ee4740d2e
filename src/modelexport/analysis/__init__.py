"""Questions about a file that carries a record: what is in it, is it sound, how does it differ. No torch."""
