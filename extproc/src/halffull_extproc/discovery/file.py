"""A watched file: endpoints.yaml, and picker.yaml where it is a file.

Looked at every second by its inode, size and time of change, so that replacing it (editors, `mv`, the symlinks of a
mounted ConfigMap) is noticed like writing into it. A file that is still being written is left alone until it rests.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from halffull_extproc.addresses import endpoint_address, format_address, split_address
from halffull_extproc.discovery import OnEndpoints, OnText, OnTrouble
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.errors import InputError
from halffull_extproc.yaml_text import Path as YamlPath
from halffull_extproc.yaml_text import SettingsError, convert, dotted, parse_yaml

MAX_ENDPOINTS_BYTES: Final = 1024 * 1024
_Stamp = tuple[int, int, int, int]


class _Entry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    address: Annotated[
        str, msgspec.Meta(max_length=128, description="IP:PORT such as 10.0.0.1:8000 or '[fd00::1]:8000'")
    ]
    load_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: Annotated[
        list[_Entry],
        msgspec.Meta(max_length=10_000, description="a list of at most 10000 items with the keys address, loadPort"),
    ]


def parse_endpoints(text: str, *, source: str, load_port: int, ranks: int | None) -> list[Endpoint]:
    """Read endpoints.yaml.

    Args:
        text: the file's content.
        source: what messages call it.
        load_port: where an entry has no loadPort.
        ranks: load reports per engine, on consecutive ports; None when no reports are read (then ports may coincide).

    Raises:
        SettingsError: with line and reason; host names, duplicates and ports out of range are refused.
    """
    document = parse_yaml(text, source=source, max_bytes=MAX_ENDPOINTS_BYTES)
    endpoints: list[Endpoint] = []
    seen: dict[str, YamlPath] = {}
    polled: dict[str, str] = {}
    for index, entry in enumerate(convert(document, _File).endpoints):
        here: YamlPath = ("endpoints", index)
        try:
            address = endpoint_address(entry.address)
        except ValueError as error:
            raise document.error((*here, "address"), str(error)) from error
        if address in seen:
            raise document.error((*here, "address"), f"{address} is {dotted(seen[address])} already")
        seen[address] = here
        port = entry.load_port or load_port
        host = split_address(address)[0]
        for rank in range(ranks or 0):
            if port + rank > 65535:
                raise document.error((*here, "loadPort"), f"rank {rank} would be asked on port {port + rank}")
            place = format_address(host, port + rank)
            if place in polled:
                raise document.error(
                    (*here, "loadPort"), f"the load report at {place} belongs to {polled[place]} already"
                )
            polled[place] = address
        endpoints.append(Endpoint(address=address, load_port=port))
    return endpoints


class FileError(InputError, OSError):
    """A file that cannot be read as text; the message is one line."""


def read_text(path: Path, *, max_bytes: int) -> str:
    """A text file of bounded size.

    Raises:
        FileError: absent, unreadable, too large, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise FileError(f"{path}: more than {max_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(f"{path}:{line}: not UTF-8") from error


@dataclass(slots=True, kw_only=True)
class WatchedFile:
    """Calls `changed` with the text whenever the file is another, at first with what it is now."""

    path: Path
    max_bytes: int
    changed: OnText
    trouble: OnTrouble
    interval: float = 1.0  # s between two looks
    settle: float = 0.1  # s that a changed file must rest before it is read
    seen: str | None = None
    """The text that was read before, so that only a change is told."""

    async def run(self) -> None:
        """Watch until cancelled. A vanished or unreadable file is trouble, and the last text stands."""
        stamp: _Stamp | None = None
        while True:
            found = await asyncio.to_thread(_stamp, self.path)
            if found != stamp or found is None:
                await asyncio.sleep(self.settle)
                if await asyncio.to_thread(_stamp, self.path) == found:
                    stamp = found
                    await self._read()
            await asyncio.sleep(self.interval)

    async def _read(self) -> None:
        try:
            text = await asyncio.to_thread(read_text, self.path, max_bytes=self.max_bytes)
        except FileError as error:
            self.trouble(str(error))
            return
        if text != self.seen:
            self.seen = text
            self.changed(text)
        self.trouble("")


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(slots=True, kw_only=True)
class EndpointsFile:
    """Endpoints from a watched endpoints.yaml."""

    path: Path
    load_port: int
    ranks: int | None
    changed: OnEndpoints
    trouble: OnTrouble
    interval: float = 1.0  # s between two looks

    async def run(self) -> None:
        """Watch until cancelled; a bad edit is trouble, and the last good list stands."""
        refused = ""

        def read(text: str) -> None:
            nonlocal refused
            try:
                endpoints = parse_endpoints(text, source=str(self.path), load_port=self.load_port, ranks=self.ranks)
            except SettingsError as error:
                refused = str(error)
            else:
                refused = ""
                self.changed(endpoints)
            self.trouble(refused)

        def trouble(line: str) -> None:
            self.trouble(line or refused)

        watched = WatchedFile(
            path=self.path, max_bytes=MAX_ENDPOINTS_BYTES, changed=read, trouble=trouble, interval=self.interval
        )
        await watched.run()
