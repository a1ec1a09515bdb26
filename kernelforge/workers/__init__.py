"""Workers of the reward server: on this machine or on a Ray cluster, behind one interface."""
