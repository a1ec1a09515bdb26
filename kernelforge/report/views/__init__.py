"""What came of runs, as plain data: pure functions over records, for every form alike."""
