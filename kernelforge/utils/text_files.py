"""Reading of text files that users name."""

from __future__ import annotations

from pathlib import Path

from kernelforge.errors import UsageError


def read_text(path: Path, limit_bytes: int, *, what: str = "", hint: str = "") -> str:
    """Text of a UTF-8 file, without a byte order mark.

    Args:
        limit_bytes: size of the largest file to read.
        what: the kind of file, for the error, such as ``the candidate``.
        hint: what the file should be, for the error.

    Raises:
        UsageError: it cannot be read, is not UTF-8, or is too large.
    """
    ending = hint and f"; {hint}"
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder{ending}") from None
    except OSError as error:
        raise UsageError(f"cannot read {f'{what} ' if what else ''}{path}: {error.strerror}") from error
    if len(data) > limit_bytes:
        raise UsageError(f"{path} is larger than {limit_bytes >> 20} MiB{ending}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}){ending}") from error
