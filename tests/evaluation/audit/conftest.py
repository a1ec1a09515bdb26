"""Makes the builders of the oracle's tests importable here."""
