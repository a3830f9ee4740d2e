"""What is found in files without a record, held against the record of the same model."""
