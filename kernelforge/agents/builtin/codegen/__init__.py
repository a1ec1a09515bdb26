"""CUDA C++ and launch plans from the built-in Coder's intermediate representation."""
