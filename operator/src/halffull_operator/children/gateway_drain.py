"""How Envoy leaves: a pre-stop hook that ends when the last request has. Pure.

SIGTERM ends Envoy at once, with all its streams. So the hook, which Kubernetes runs before it, asks Envoy's admin
interface (on loopback, out of reach for anybody else) to fail its health, waits until every load balancer has heard of
it, lets the listener drain, and comes back when no request is left. It needs bash, which speaks TCP by itself.
"""

from typing import Final

_SCRIPT: Final = r"""
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$ADMIN" || return
  printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}
ADMIN=$1 QUIET=$2 END=$((SECONDS + $2 + $3))
ask POST /healthcheck/fail
sleep "$QUIET"
ask POST '/drain_listeners?graceful&skip_exit'
while ((SECONDS < END)); do
  answer=$(ask GET '/stats?filter=^http\.ingress\.downstream_rq_active$')
  case $answer in
    *'rq_active: 0'*) exit 0 ;;
    *'rq_active: '*) sleep 1 ;;
    *) exit 0 ;;
  esac
done
"""


def hook(*, admin: int, quiet: int, drain: int) -> list[str]:
    """The command.

    Args:
        admin: port of Envoy's admin interface.
        quiet: seconds until nobody sends new requests here.
        drain: seconds that requests may go on after that.
    """
    return ["/bin/bash", "-c", _SCRIPT.strip(), "drain", str(admin), str(quiet), str(drain)]
