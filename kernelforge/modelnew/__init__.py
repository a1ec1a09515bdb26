"""Evaluation of KernelBench's ``ModelNew`` classes: hostile host code in a confined process, the same oracle."""

from kernelforge.modelnew.evaluator import MODELNEW_VERSION, ModelNewEvaluator, modelnew_candidate

__all__ = ["MODELNEW_VERSION", "ModelNewEvaluator", "modelnew_candidate"]
