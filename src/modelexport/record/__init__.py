"""What is stored and what verbs return: values of the standard library alone."""
