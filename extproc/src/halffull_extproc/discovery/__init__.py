"""Where the engines are, and what the configuration says now: one module for each source.

Each source is a coroutine `run()` that ends only when cancelled. It calls `changed` with the whole new state (endpoints
or text) and `trouble` with one line for people: empty when all is well. While there is trouble the last good state
stands.
"""

from collections.abc import Callable

from halffull_extproc.endpoint import Endpoint

OnEndpoints = Callable[[list[Endpoint]], None]
OnText = Callable[[str], None]
OnTrouble = Callable[[str], None]
