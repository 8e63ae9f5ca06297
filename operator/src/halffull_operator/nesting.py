"""JSON that is nested deeper than Python reads. Pure.

The API server takes ten thousand levels, in the escape hatches whatever a person writes; Python's parser gives up at a
thousand. One such object in a list would keep the operator from seeing any. So what lies too deep is cut off before it
is parsed, and what is left is still deeper than any spec may be.
"""

import json
import re
from typing import Any, Final

DEEPEST: Final = 100
"""Levels that are kept; real objects have thirty."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def loads(text: bytes) -> Any:
    """`json.loads`, for any depth.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text))


def shallow(text: bytes) -> bytes:
    """The same JSON with null for what lies deeper than DEEPEST."""
    if text.count(b"{") + text.count(b"[") <= DEEPEST:
        return text
    kept: list[bytes] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == DEEPEST + 1:
                    kept.append(text[start : token.start()] + b"null")
            case b"}" | b"]":
                if depth == DEEPEST + 1:
                    start = token.end()
                depth -= 1
            case _:
                pass
    return b"".join((*kept, text[start:])) if kept else text
