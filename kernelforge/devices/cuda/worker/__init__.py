"""The runner's process: loads a build on a GPU and executes plans. Runs in a confined child."""
