"""Translations between C and CUDA: C functions judged in a jail, and scores of translated text."""
