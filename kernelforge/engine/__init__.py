"""Where the reward server's work is done: workers of this machine, or of a Ray cluster, behind one protocol."""
