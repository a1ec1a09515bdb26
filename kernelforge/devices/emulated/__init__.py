"""The emulated device: real PTX run on the CPU, every access checked, PTX events counted."""
