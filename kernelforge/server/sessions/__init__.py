"""Conversations of several turns: each turn is a job, and the Judge's finding comes back."""
