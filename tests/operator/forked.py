"""The operator in a fork of a process that has imported it: run by `process`, which gives a global GIVEN."""

import os
import runpy
import sys
from typing import Any

from kubernetes.aio.config import kube_config

given: dict[str, Any] = globals()["GIVEN"]
output = os.open(given["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
os.dup2(output, 1)
os.dup2(output, 2)
os.environ.clear()
os.environ.update(given["environment"])
kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ["KUBECONFIG"]  # read at import
sys.argv = ["halffull-operator", *given["arguments"]]
program: tuple[str, ...] = given["program"]  # -m and a module, or a file
if program[0] == "-m":
    runpy.run_module(program[1], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(program[0], run_name="__main__")
