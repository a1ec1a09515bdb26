"""Local web viewer of runs in progress. Read-only."""
