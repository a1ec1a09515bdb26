"""Views: results of runs as plain data, from pure functions over records."""
