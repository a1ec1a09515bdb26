"""The oracle's process: runs the reference, computes expected values, compares. Runs in a confined child."""
