"""Metrics, roofline position and modelled time from raw counters. Pure functions, no I/O."""
