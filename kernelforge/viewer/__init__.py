"""The report's pages while a run goes on: a read-only server for one machine."""
