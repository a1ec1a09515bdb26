"""From raw counters to metrics, a place on the roofline, a modelled time and a table. Pure functions, no I/O."""
