"""Server-sent events, bytes in and event data out, however the network splits them."""


class EventParser:
    """Incremental parser of a text/event-stream body (WHATWG HTML, section 9.2.6), for what completions streams use.

    Lines end with LF, CR LF or CR, each possibly split between chunks; a comment (keep-alive) and every field but
    `data` is skipped. An event that the stream ends within is no event, as the standard says. The cost is linear in
    the bytes: a large event that comes in many chunks is joined once.
    """

    __slots__ = ("_after_cr", "_data", "_partial", "_start")

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of a line whose end has not come
        self._data: list[bytes] = []  # data lines of an event whose end has not come
        self._after_cr = False
        self._start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that `chunk` completes."""
        events: list[bytes] = []
        if not chunk:
            return events
        if self._after_cr:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        for piece in chunk.splitlines(keepends=True):
            last = piece[-1]
            if last not in b"\r\n":
                self._partial.append(piece)
                return events
            line = piece.rstrip(b"\r\n")
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)
                self._partial.clear()
            event = self._line(line)
            if event is not None:
                events.append(event)
        self._after_cr = chunk.endswith(b"\r")
        return events

    def _line(self, line: bytes) -> bytes | None:
        """Take a whole line; the event's data when the line ends an event."""
        if self._start:
            self._start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data.clear()
            return event
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            self._data.append(b"")
        return None
