"""Capture: a user's model as operators and fusible groups with their share of time, and groups as a suite of tasks."""
