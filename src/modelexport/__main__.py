"""`python -m modelexport`."""

from modelexport.cli import main

main()
