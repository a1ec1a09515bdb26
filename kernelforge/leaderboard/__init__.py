"""Leaderboards as files: entries that anyone can submit, boards built from them, and their verification."""
