"""Options, output and progress that the commands share."""
