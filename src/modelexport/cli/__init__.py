"""The command line: parse, one call of the api, one view."""
