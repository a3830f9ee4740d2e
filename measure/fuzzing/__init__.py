"""Fuzzing: every reading and transforming verb on files that somebody has tampered with."""
