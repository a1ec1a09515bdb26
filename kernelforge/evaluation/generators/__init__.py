"""Input generators that a Tester writes: parsed in the parent, drawn from in the oracle."""
