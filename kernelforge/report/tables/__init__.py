"""Which attributes of which view make a table, under which heading: said once for every format."""
