"""The results database: one SQLite file per results folder, written as things happen."""

from kernelforge.store.store import DATABASE_NAME, Store
from kernelforge.store.task_store import Draft

__all__ = ["DATABASE_NAME", "Draft", "Store"]
