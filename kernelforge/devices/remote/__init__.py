"""Devices of other machines, reached over SSH: their names, what is installed there, and how a process is started."""
