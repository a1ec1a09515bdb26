"""Helpers without knowledge of kernels: files, locks, folders and shell commands."""
