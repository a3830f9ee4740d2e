"""`python -m modelexport`."""

from modelexport.cli.start import main

main()
