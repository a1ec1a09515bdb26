"""The pages of runs while they go on, for the browser of whoever started the viewer. Reads, and writes nothing."""
