"""Helpers that know nothing of kernels: atomic file replacement, file locks, removal of folder trees."""
