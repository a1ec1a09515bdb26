"""The built-in Coder's intermediate representation of a traced reference."""
