"""How results look: tables for people, JSON and CSV for programs. No view decides or computes anything."""
