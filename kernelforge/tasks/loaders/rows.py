"""Rows of other benchmarks' files, validated, and the names of their tasks."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

_LONGEST = 80

Taken = dict[str, int]
"""Used names, each with its last numeric suffix."""


def task_name(text: str) -> str:
    """Lower case, digits and single underscores: ``1_Square_matrix_multiplication_`` → ``1_square_matrix_...``."""
    plain = unicodedata.normalize("NFKD", text[: 4 * _LONGEST]).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")[:_LONGEST].strip("_") or "task"


def problem_name(level: int | None, called: str) -> str:
    """Name of the task that is made of a problem: ``level1_19_relu``."""
    return ("" if level is None else f"level{level}_") + task_name(called)


def task_title(text: str) -> str:
    """A file's name as words: ``19_ReLU`` → ``ReLU``."""
    return re.sub(r"[_\s]+", " ", re.sub(r"^\d+_", "", text)).strip() or text


def distinct(name: str, taken: Taken) -> str:
    """The name, with a numeric suffix if it is used; adds the result to ``taken``."""
    candidate, number = name, taken.get(name, 0) + 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken[name] = number
    taken.setdefault(candidate, 1)
    return candidate


_MAX_LINE_BYTES = 4 << 20
_BATCH_ROWS = 64
_MOST_ROWS, _MOST_BYTES = 50_000, 512 << 20
"""Limits of one file: the largest known data set has some thousands of rows of a few kilobytes."""


@dataclass(frozen=True)
class Row:
    """One row, or the reason why it cannot be read."""

    origin: str
    """File and number of the row, from 0."""
    values: dict[str, Any]
    fault: str = ""


def data_files(source: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file itself, or the files of a folder and its sub-folders, in order of their names."""
    if source.is_file():
        return [source] if source.suffix in suffixes else []
    if not source.is_dir():
        return []
    return sorted(
        path for suffix in suffixes for path in source.rglob(f"*{suffix}") if path.is_file() and not path.is_symlink()
    )


def columns_of(path: Path) -> set[str]:
    """Column names of a file, in JSON lines those of the first line; empty if it cannot be read."""
    try:
        if path.suffix == ".parquet":
            return set(_parquet().read_schema(path).names)
        if path.suffix == ".arrow":
            with _arrow_stream(path) as stream:
                return set(stream.schema.names)
        if path.suffix == ".json" and _is_array(path):
            return set(next(_array_rows(path), Row("", {})).values)
        with path.open("rb") as file:
            first = json.loads(file.readline(_MAX_LINE_BYTES))
        return set(first) if isinstance(first, dict) else set()
    except (OSError, ValueError, RecursionError, MemoryError, UsageError):
        return set()
    except Exception as error:
        if not _is_arrows(error):
            raise
        return set()


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Rows of a parquet file, an arrow stream, a JSON array or JSON lines; a line that is no object is a row with a
    fault.

    Raises:
        UsageError: the file cannot be read, or lacks a column.
    """
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, columns)
        return
    if path.suffix == ".arrow":
        yield from _arrow_rows(path, columns)
        return
    if path.suffix == ".json" and _is_array(path):
        yield from _array_rows(path)
        return
    try:
        with path.open("rb") as file:
            number = total = 0
            while line := file.readline(_MAX_LINE_BYTES + 1):
                origin = f"{path.name}, row {number}"
                total += len(line)
                if fault := too_much(number, len(line), total):
                    yield Row(origin, {}, fault)
                    return
                if line.strip():
                    yield _json_row(origin, line)
                number += 1
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def too_much(number: int, length: int, total: int) -> str:
    """Reason to stop reading a file, or an empty string."""
    if length > _MAX_LINE_BYTES:
        return f"the row has more than {_MAX_LINE_BYTES:,} bytes; the file is read no further"
    if number >= _MOST_ROWS or total > _MOST_BYTES:
        return f"the file has more than {_MOST_ROWS:,} rows or {_MOST_BYTES:,} bytes; it is read no further"
    return ""


def _json_row(origin: str, line: bytes) -> Row:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(origin, {}, f"the row is not JSON: {error}")
    return Row(origin, values) if isinstance(values, dict) else Row(origin, {}, "the row is no JSON object")


def _is_array(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] == b"["
    except OSError:
        return False


def _array_rows(path: Path) -> Iterator[Row]:
    """Rows of a file that is one JSON array."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} has more than {_MOST_BYTES:,} bytes")
        items = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not JSON: {str(error)[:200]}") from error
    for number, item in enumerate(items[:_MOST_ROWS]):
        origin = f"{path.name}, row {number}"
        yield Row(origin, item) if isinstance(item, dict) else Row(origin, {}, "the row is no JSON object")
    if len(items) > _MOST_ROWS:
        yield Row(f"{path.name}, row {_MOST_ROWS}", {}, too_much(_MOST_ROWS, 0, 0))


def _arrow_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Rows of an arrow stream, the form in which ``datasets`` saves to disk."""
    number = total = 0
    with _arrow_stream(path) as stream:
        present = [name for name in columns if name in stream.schema.names]
        for batch in stream:
            for index in range(batch.num_rows):
                origin = f"{path.name}, row {number}"
                values = {name: batch.column(name)[index] for name in present}
                lengths = [_length(value) for value in values.values()]
                total += sum(lengths)
                if fault := too_much(number, max(lengths, default=0), total):
                    yield Row(origin, {}, fault)
                    return
                yield Row(origin, {name: value.as_py() for name, value in values.items()})
                number += 1


@contextmanager
def _arrow_stream(path: Path) -> Iterator[Any]:
    """The reader of an arrow stream.

    Raises:
        UsageError: pyarrow is missing, or the file is no stream.
    """
    _parquet()
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            yield stream
    except (OSError, ValueError, LookupError, OverflowError, MemoryError, pyarrow.ArrowException) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"cannot read {path} as an arrow stream: {message[:200]}") from error


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    parquet = _parquet()
    import pyarrow

    number = total = 0
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            present = [name for name in columns if name in schema.names]
            texts = [name for name in present if str(schema.field(name).type) in ("string", "large_string")]
        # Repeated texts are kept once, as in the file: expanded, a small file may not fit into memory.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=present):
                for index in range(batch.num_rows):
                    origin = f"{path.name}, row {number}"
                    lengths = [_length(column[index]) for column in batch.columns]
                    total += sum(lengths)
                    if fault := too_much(number, max(lengths, default=0), total):
                        yield Row(origin, {}, fault)
                        return
                    yield Row(origin, {name: batch.column(name)[index].as_py() for name in present})
                    number += 1
    except (OSError, ValueError, LookupError, OverflowError, MemoryError, pyarrow.ArrowException) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"cannot read {path}: {message[:200]}") from error


def _length(value: Any) -> int:
    """Bytes of a text in a parquet file; 0 for other values."""
    import pyarrow

    plain = value.value if isinstance(value, pyarrow.DictionaryScalar) else value
    if isinstance(plain, pyarrow.StringScalar | pyarrow.BinaryScalar) and plain.is_valid:
        return int(plain.as_buffer().size)
    return 0


def _is_arrows(error: Exception) -> bool:
    import pyarrow

    return isinstance(error, pyarrow.ArrowException)


def _parquet() -> Any:
    """pyarrow's reader.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            f"parquet files are read with pyarrow, which is not installed: {install_hint('datasets')}"
        ) from None
    return parquet
