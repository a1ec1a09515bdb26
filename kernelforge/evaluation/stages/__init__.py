"""The stages of an evaluation in their order: build, correctness at each size, the full size, tuning."""
