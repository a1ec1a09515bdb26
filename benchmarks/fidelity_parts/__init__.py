"""Parts of the benchmarks that hold the emulated device to what GPUs measured."""
