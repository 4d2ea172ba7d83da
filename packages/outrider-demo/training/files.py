"""Directories that appear whole or not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def claim_directory(directory: Path) -> None:
    """Create an output directory, or accept an empty one.

    Called before long work, so that a path that cannot be written is known at once.

    Raises:
        FileExistsError: If the path is a file, or a directory that is not empty.
        OSError: If it cannot be created.
    """
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise FileExistsError(f"{directory} already exists; name a new or an empty directory")
    directory.mkdir(parents=True, exist_ok=True)


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Yield a staging directory that takes the place of `directory` when the block succeeds.

    The staging directory lies beside the final one, so that the last step is a rename within one
    file system. If the block raises, `directory` is as it was before. What `directory` held is
    deleted on success. Its parent must exist.
    """
    directory = directory.resolve()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as scratch:
        staged, previous = Path(scratch, "staged"), Path(scratch, "previous")
        staged.mkdir()
        yield staged
        try:
            if directory.exists():
                directory.rename(previous)
            staged.rename(directory)
        except BaseException:
            if previous.exists() and not directory.exists():
                previous.rename(directory)
            raise
