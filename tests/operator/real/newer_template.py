"""An operator of a version that makes engines in another way: run as a program."""

import sys
from typing import Any

from halffull_operator.children import engine
from halffull_operator.cli import main

_before = engine._template


def _newer(*arguments: Any) -> dict[str, Any]:
    template = _before(*arguments)
    container = template["spec"]["containers"][0]
    container["env"] = [*container["env"], {"name": "NEWER", "value": "1"}]
    container["startupProbe"] = {**container["startupProbe"], "timeoutSeconds": 7}
    template["spec"]["priorityClassName"] = "system-node-critical"
    del template["spec"]["topologySpreadConstraints"]
    return template


if __name__ == "__main__":
    engine._template = _newer
    sys.exit(main())
