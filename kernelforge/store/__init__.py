"""The results database: one SQLite file per results folder, written as things happen."""

from kernelforge.store.notes import Draft
from kernelforge.store.store import DATABASE_NAME, Store

__all__ = ["DATABASE_NAME", "Draft", "Store"]
