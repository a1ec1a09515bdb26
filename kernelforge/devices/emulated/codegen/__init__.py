"""Machine code from PTX: LLVM IR for each kernel, compiled in the runner's process."""
