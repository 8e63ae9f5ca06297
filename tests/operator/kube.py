"""A real control plane (hack/cluster), and calls to it from tests: synchronous, no client library in between."""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from halffull_operator import kinds, nesting
from halffull_operator.kinds import Kind, Manifest

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "hack" / "cluster" / "cluster"
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
"""
T = TypeVar("T")


def wait_until(what: str, look: Callable[[], T | bool | None], *, within: float = 30.0) -> T:
    """Look until there is something to see; what is seen.

    A look that fails is had again: what it asserts may not be so yet, what it looks up may not be there, and the API
    server may be ill for a moment, or not know of a right that was just granted.
    """
    end = time.monotonic() + within
    while True:
        last: Exception | None = None
        try:
            if found := look():
                return found  # type: ignore[return-value]  # not a bool, unless the caller wants one
        except (AssertionError, LookupError, OSError, http.client.HTTPException, Refused) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {within:.0f} s: {what}" + (f": {last}" if last else "")) from last
        time.sleep(0.1)


class Refused(Exception):  # noqa: N818  what the API server does
    """A status other than 2xx."""

    def __init__(self, status: int, answer: Manifest) -> None:
        super().__init__(f"{status}: {answer.get('message', answer)}")
        self.status = status
        self.answer = answer
        self.message = str(answer.get("message", ""))


class Api:
    """The API server, as somebody."""

    def __init__(self, host: str, port: int, *, context: ssl.SSLContext, token: str | None = None) -> None:
        self.host, self.port = host, port
        self.context = context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Manifest:
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.context, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {**self._headers, "Content-Type": content_type})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        try:
            answer: Manifest = nesting.loads(text) if text.startswith(b"{") else {"message": text.decode()}
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if not 200 <= response.status < 300:
            raise Refused(response.status, answer)
        return answer

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest | None:
        try:
            return self.call("GET", kind.path(namespace, name))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def must_get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        found = self.get(kind, name, namespace)
        assert found is not None, f"no {kind.kind} {name}"
        return found

    def list(self, kind: Kind, namespace: str | None = None, *, selector: str = "") -> list[Manifest]:
        query = f"?labelSelector={selector.replace('=', '%3D').replace(',', '%2C')}" if selector else ""
        items: list[Manifest] = self.call("GET", kind.path(namespace) + query)["items"]
        return items

    def create(self, manifest: Manifest) -> Manifest:
        return self.call("POST", path_of(manifest, name=False), manifest)

    def apply(self, manifest: Manifest, *, manager: str = "test") -> Manifest:
        return self.call(
            "PATCH",
            f"{path_of(manifest)}?fieldManager={manager}&force=true",
            manifest,
            content_type="application/apply-patch+yaml",
        )

    def merge(
        self, kind: Kind, name: str, body: Manifest, namespace: str | None = None, *, manager: str = "test"
    ) -> Manifest:
        return self.call(
            "PATCH",
            f"{kind.path(namespace, name)}?fieldManager={manager}",
            body,
            content_type="application/merge-patch+json",
        )

    def delete(self, kind: Kind, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        try:
            self.call("DELETE", kind.path(namespace, name), {"propagationPolicy": propagation})
        except Refused as error:
            if error.status != 404:
                raise


def path_of(manifest: Manifest, *, name: bool = True) -> str:
    """The path of an object, of whatever kind."""
    known = {
        "Namespace": "namespaces",
        "ClusterRole": "clusterroles",
        "ClusterRoleBinding": "clusterrolebindings",
        "ResourceQuota": "resourcequotas",
    }
    kind, metadata = manifest["kind"], manifest["metadata"]
    try:
        known_kind = kinds.kind_of(manifest)
    except KeyError:
        namespaced = "namespace" in metadata
        known_kind = Kind(manifest["apiVersion"], kind, known.get(kind, kind.lower() + "s"), namespaced=namespaced)
    return known_kind.path(metadata.get("namespace"), metadata["name"] if name else None)


@dataclass(frozen=True)
class Call:
    """A line of the audit log."""

    verb: str
    resource: str
    """Such as pods, or llmservings/status."""
    namespace: str
    name: str
    user: str
    agent: str
    status: int
    group: str = ""
    """The API group; "" is the core group, and what is no resource has none."""
    allowed: bool = True
    """By RBAC. What admission refuses was allowed."""


@dataclass(frozen=True)
class ControlPlane:
    """One cluster that is up."""

    name: str
    kubeconfig: Path
    audit_log: Path
    admin: Api

    def calls(self, *, since: int = 0) -> list[Call]:
        """The audit log from a byte on; watches are there once they end."""
        with self.audit_log.open("rb") as file:
            file.seek(since)
            lines = file.read().splitlines()
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # half written
            reference = event.get("objectRef") or {}
            resource = reference.get("resource", event["requestURI"].partition("?")[0])
            if reference.get("subresource"):
                resource += "/" + reference["subresource"]
            found.append(
                Call(
                    verb=event["verb"],
                    resource=resource,
                    namespace=reference.get("namespace", ""),
                    name=reference.get("name", ""),
                    user=event["user"]["username"],
                    agent=event.get("userAgent", ""),
                    status=(event.get("responseStatus") or {}).get("code", 0),
                    group=reference.get("apiGroup", ""),
                    allowed=(event.get("annotations") or {}).get("authorization.k8s.io/decision") != "forbid",
                )
            )
        return found

    def audit_position(self) -> int:
        """Where the audit log ends at this moment."""
        return self.audit_log.stat().st_size

    def restart_api_server(self, *, down_for: float = 0.0) -> None:
        """Kill it, and start the same again. Its watch caches are new then, and every watch has to list anew."""
        run = self.kubeconfig.parent
        pid_file = run / "kube-apiserver.pid"
        command = _command_of(int(pid_file.read_text()))
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        wait_until("the API server is dead", lambda: not _command_of(int(pid_file.read_text()))[0])
        time.sleep(down_for)
        script = 'setsid nohup "$@" </dev/null >>"$LOG" 2>&1 & echo $!'  # no child of ours, as it was none before

        def answers() -> bool:
            # It ends at once where its port has become the near end of somebody's connection meanwhile.
            if not _command_of(int(pid_file.read_text()))[0]:
                done = subprocess.run(
                    ["/bin/bash", "-c", script, "bash", *command],
                    env={**os.environ, "LOG": str(run / "log" / "kube-apiserver.log")},
                    capture_output=True,
                    check=True,
                )
                pid_file.write_bytes(done.stdout)
                time.sleep(0.5)  # until it is what it is called by
            return self._answers()

        wait_until("the API server is ready", answers, within=120)

    def _answers(self) -> bool:
        try:
            self.admin.call("GET", "/readyz")
        except (OSError, Refused):
            return False
        return True

    def kubeconfig_as(self, *, account: str, namespace: str, folder: Path, server: str | None = None) -> Path:
        """A kubeconfig of a service account."""
        answer = self.admin.call(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"spec": {"expirationSeconds": 3600}},
        )
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        return write_kubeconfig(config, folder, server=server)


def _command_of(pid: int) -> list[str]:
    """A process' command line; [""]: there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    except FileNotFoundError:
        return [""]


def write_kubeconfig(config: Manifest, folder: Path, *, server: str | None) -> Path:
    """Write one, perhaps for another address."""
    if server is not None:
        config["clusters"][0]["cluster"] = {"server": server}
    path = folder / f"kubeconfig-{uuid.uuid4().hex[:8]}"
    path.write_text(yaml.safe_dump(config))
    return path


def kubectl(plane: ControlPlane, *arguments: str) -> str:
    """What a person types; what is printed."""
    program = Path(os.environ.get("CLUSTER_HOME", "~/.cache/halffull-cluster")).expanduser() / "bin" / "kubectl"
    done = subprocess.run(
        [program, "--kubeconfig", plane.kubeconfig, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def admin_of(kubeconfig: Path) -> Api:
    """Calls with a kubeconfig's client certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    certificates = kubeconfig.parent / "certs"
    context.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    return Api(host, int(port), context=context)


@contextmanager
def control_plane(
    folder: Path, *, mode: str = "kwok", audit_policy: str = AUDIT_POLICY, flags: str = ""
) -> Iterator[ControlPlane]:
    """Start a cluster of its own, and leave nothing behind; `flags` are the API server's."""
    name = f"operator-{os.getpid()}-{uuid.uuid4().hex[:4]}"
    policy, audit_log = folder / "audit-policy.yaml", folder / "audit.log"
    policy.write_text(audit_policy)
    environment = {
        **os.environ,
        "CLUSTER_NAME": name,
        "APISERVER_FLAGS": "--enable-admission-plugins OwnerReferencesPermissionEnforcement"
        f" --audit-policy-file {policy} --audit-log-path {audit_log} --audit-log-mode blocking"
        f" --audit-log-maxsize 8192 {flags}",  # MB; at the default of 100 a long session's log would be rotated away
    }
    try:
        done = subprocess.run([CLUSTER, "up", mode], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        kubeconfig = Path(done.stdout.strip())
        yield ControlPlane(name, kubeconfig, audit_log, admin_of(kubeconfig))
    except BaseException:
        subprocess.run([CLUSTER, "down"], env=environment, capture_output=True, check=True)
        raise  # its logs stay
    else:
        subprocess.run([CLUSTER, "down"], env=environment, capture_output=True, check=True)
        shutil.rmtree(kubeconfig.parent)
