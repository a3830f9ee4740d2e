"""`python -m modelexport`."""

from modelexport.cli.main import main

main()
