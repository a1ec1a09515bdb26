"""Conversations of several turns: each turn is a job, and the Judge's words come back."""
