"""From raw counters to metrics, a place on the roofline and a modelled time. Pure functions, no I/O."""
