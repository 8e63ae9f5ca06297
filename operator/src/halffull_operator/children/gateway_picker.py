"""How the picker is kept running inside its container. Pure.

A container that ends makes its pod unready until it runs again, and Kubernetes waits longer after each end: a picker
that keeps crashing would take every gateway pod out of the Service, though Envoy serves on without it. So a picker that
has served once in this pod is started again in place. One that never did ends its container, where its last words
become the pod's. A picker that hangs ends itself (halffull_extproc.watchdog).
"""

from typing import Final

SERVED_AFTER: Final = 10
"""Seconds that a picker lives, when it can start at all."""
_SCRIPT: Final = r"""
mark=$1 enough=$2
shift 2
trap 'stopping=1; kill -TERM "$picker" 2>/dev/null' TERM INT
while [[ ! $stopping ]]; do
  begun=$SECONDS
  "$@" &
  picker=$!
  if [[ $stopping ]]; then kill -TERM "$picker"; fi
  wait "$picker"
  status=$?
  if [[ $stopping ]]; then
    wait "$picker"
    exit
  fi
  ((SECONDS - begun < enough)) || touch "$mark"
  [[ -e $mark ]] || exit "$status"
  printf '{"level":"error","event":"the picker ended and is started again","status":%s}\n' "$status" >&2
  sleep 1
done
"""


def kept_running(command: list[str], *, mark: str, enough: int = SERVED_AFTER) -> list[str]:
    """The command of its container.

    Args:
        command: starts the picker.
        mark: a file that outlives the container, and not the pod; there when a picker has served in this pod.
        enough: seconds that one must live to have served.
    """
    return ["/bin/bash", "-c", _SCRIPT.strip(), "picker", mark, str(enough), *command]
