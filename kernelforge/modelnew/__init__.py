"""Evaluation of KernelBench's ``ModelNew`` classes: hostile host code in a confined process, the same oracle."""
