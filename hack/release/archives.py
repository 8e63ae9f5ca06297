"""Archives whose bytes depend on their content alone: no clock, user, umask or order of a file system."""

import fnmatch
import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import IO


def add(archive: tarfile.TarFile, name: str, data: IO[bytes], size: int, *, mtime: int = 0) -> None:
    """Append a file; `size` in bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, mtime, 0o644
    archive.addfile(info, data)


def package_chart(chart: Path, target: Path, *, mtime: int) -> None:
    """Write what `helm package` writes, less the time of day: what .helmignore lets through, Chart.yaml first."""
    ignored = [line for line in (chart / ".helmignore").read_text().splitlines() if line and not line.startswith("#")]
    files = [
        file.relative_to(chart).as_posix()
        for file in chart.rglob("*")
        if file.is_file() and not any(fnmatch.fnmatch(file.name, pattern) for pattern in ignored)
    ]
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=mtime) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files, key=lambda name: (name != "Chart.yaml", name)):
            content = (chart / name).read_bytes()
            add(archive, f"{chart.name}/{name}", io.BytesIO(content), len(content), mtime=mtime)


def sha256(data: io.BufferedIOBase) -> str:
    """Hex digest of what is left to read."""
    return hashlib.file_digest(data, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS over every other file, for `sha256sum --check`."""
    lines = []
    for file in sorted(folder.iterdir()):
        if file.name != "SHA256SUMS" and not file.name.startswith("."):  # uv leaves a .gitignore
            with file.open("rb") as data:
                lines.append(f"{sha256(data)}  {file.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
