"""Signals: commands that are interrupted, ended or killed while they write, at chosen lines."""
