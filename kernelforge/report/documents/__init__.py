"""Views and records as Markdown, CSV and JSON lines."""
