"""Table definitions: which attributes of a view, under which heading; used by every format."""
