"""Calls to the API server: server-side apply, deletes, status, events, lists. Nothing is decided here.

On kubernetes.aio's dynamic client, without its discovery (kinds.py says why). Every call has a timeout, is counted, and
fails with an `ApiError` only.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from halffull_operator import kinds, nesting
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.ownership import FIELD_MANAGER
from halffull_operator.version import user_agent

TIMEOUT: Final = 30.0  # s for one call
PAGE: Final = 250  # objects of a list at once: some 3 MB, of which the event loop sees nothing for 50 ms
RETRIES: Final = (0.1, 0.5)  # s before a second and a third attempt
_LONGEST_WAIT: Final = 2.0  # s; what must wait for longer waits in the work queue
APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With a parameter the client leaves the body to us (`_as_yaml`); the API server takes it off."""
MERGE: Final = "application/merge-patch+json"
EDIT: Final = "application/json-patch+json"
_NOT_IN_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_MALFORMED: Final = re.compile(
    r"(?s)failed to (?:create typed patch object|convert new object) \([^)]*\)(?: to proper version)?: (.*)"
)
"""How a server-side apply refuses what does not fit the kind's schema: as 500, which would be tried again for ever."""
_RETRYABLE: Final = frozenset({"Conflict", "AlreadyExists", "Timeout", "ServerTimeout", "TooManyRequests", "Expired"})

Page = tuple[list[Manifest], str]
"""Objects, and the version of the list."""
Count = Callable[[str, str, str], None]
"""Told of each call: verb, plural, "ok" or the reason of the failure."""


class Cluster:
    """The API server, as far as the operator uses it."""

    def __init__(self, api: Any, *, count: Count) -> None:
        """Take an ApiClient of kubernetes.aio."""
        untyped: Any = DynamicClient
        self._client = untyped(api)
        self._count = count

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Manifest | None:
        """One object as it is now; None: there is none."""
        try:
            return await self._call("get", kind, kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Manifest], str]:
        """(objects, version of the list)."""
        answer = await self._call(
            "list",
            kind,
            kind.path(namespace),
            label_selector=label_selector or None,
            field_selector=field_selector or None,
        )
        return _items(kind, answer)

    async def pages(self, kind: Kind, *, namespace: str | None = None, label_selector: str = "") -> AsyncIterator[Page]:
        """A long list piece by piece."""
        more: str | None = None
        while True:
            answer = await self._call(
                "list",
                kind,
                kind.path(namespace),
                label_selector=label_selector or None,
                limit=PAGE,
                _continue=more,
            )
            yield _items(kind, answer)
            more = answer.get("metadata", {}).get("continue")
            if not more:
                return

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER) -> Manifest:
        """Server-side apply: our fields win. Returns the object as stored."""
        kind = kinds.kind_of(manifest)
        metadata = manifest["metadata"]
        return await self._call(
            "patch",
            kind,
            kind.path(metadata.get("namespace"), metadata["name"]),
            body=_as_yaml(manifest),
            content_type=APPLY,
            field_manager=manager,
            force_conflicts="true",
        )

    async def apply_status(self, kind: Kind, *, name: str, namespace: str, uid: str, status: Manifest) -> Manifest:
        """Make a status exactly this one, of the object with that uid. Returns the object as stored."""
        return await self._call(
            "patch",
            kind,
            kind.path(namespace, name, "status"),
            body=_as_yaml(
                {
                    "apiVersion": kind.api_version,
                    "kind": kind.kind,
                    "metadata": {"name": name, "namespace": namespace, "uid": uid},
                    "status": status,
                }
            ),
            content_type=APPLY,
            field_manager=FIELD_MANAGER,
            force_conflicts="true",
        )

    async def merge(self, kind: Kind, name: str, body: Manifest, *, namespace: str | None = None) -> Manifest:
        """JSON merge patch, for objects that are not ours as a whole. Returns the object as stored."""
        return await self._call(
            "patch",
            kind,
            kind.path(namespace, name),
            body=body,
            content_type=MERGE,
            field_manager=FIELD_MANAGER,
        )

    async def edit(self, kind: Kind, name: str, operations: Sequence[Manifest], namespace: str) -> Manifest:
        """JSON patch. Returns the object as stored."""
        return await self._call(
            "patch",
            kind,
            kind.path(namespace, name),
            body=list(operations),
            content_type=EDIT,
            field_manager=FIELD_MANAGER,
        )

    async def delete(self, kind: Kind, name: str, *, namespace: str, uid: str | None, orphan: bool = False) -> None:
        """Delete an object if it has that uid; what it owns goes too, or stays. That it is gone already is fine."""
        body: Manifest = {"propagationPolicy": "Orphan" if orphan else "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("delete", kind, kind.path(namespace, name), body=body)
        except ApiError as error:
            if error.status != 404 and not (error.status == 409 and uid is not None):
                raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Returns it as stored."""
        kind = kinds.kind_of(manifest)
        return await self._call(
            "post", kind, kind.path(manifest["metadata"].get("namespace")), body=manifest, field_manager=FIELD_MANAGER
        )

    async def served(self, optional: Iterable[Kind]) -> frozenset[Kind]:
        """Which of these kinds the API server serves at this moment."""
        found = set()
        for kind in optional:
            try:
                answer = await self._call("get", kind, f"/apis/{kind.api_version}")
            except ApiError as error:
                if error.status == 404:
                    continue
                raise
            if any(resource.get("name") == kind.plural for resource in answer.get("resources") or []):
                found.add(kind)
        return frozenset(found)

    async def _call(self, verb: str, kind: Kind, path: str, **options: Any) -> Manifest:
        """One call, with a second and a third attempt where the first met a passing trouble.

        A reconcile is twenty calls: without them one failure in four would let hardly any reconcile reach its end.
        """
        for wait in RETRIES:
            try:
                return await self._once(verb, kind, path, **options)
            except ApiError as error:
                wait = max(wait, error.retry_after or 0.0)  # noqa: PLW2901  what the server asks for comes first
                if not _passing(error, verb) or wait > _LONGEST_WAIT:
                    raise
            await asyncio.sleep(wait)
        return await self._once(verb, kind, path, **options)

    async def _once(self, verb: str, kind: Kind, path: str, **options: Any) -> Manifest:
        method = "get" if verb == "list" else verb
        try:
            async with asyncio.timeout(TIMEOUT):  # reading the body included
                response = await self._client.request(
                    method,
                    path,
                    serialize=False,
                    _request_timeout=aiohttp.ClientTimeout(total=TIMEOUT),
                    **options,
                )
                data = await response.read()
            answer = nesting.loads(data)
        except ApiException as error:
            refused = from_response(error.status, error.body, error.headers)
            self._count(verb, kind.plural, refused.reason)
            raise refused from error
        except TimeoutError as error:
            self._count(verb, kind.plural, "Timeout")
            raise ApiError("Timeout", f"no answer within {TIMEOUT:.0f} s to {verb} {path}", retryable=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._count(verb, kind.plural, "Unreachable")
            message = f"{verb} {path}: {str(error) or type(error).__name__}"
            raise ApiError("Unreachable", message, retryable=True) from error
        self._count(verb, kind.plural, "ok")
        return answer if isinstance(answer, dict) else {}


def _items(kind: Kind, answer: Manifest) -> Page:
    common = {"apiVersion": kind.api_version, "kind": kind.kind}  # the items of a list come without them
    items = [{**common, **item} for item in answer.get("items") or []]
    return items, str(answer.get("metadata", {}).get("resourceVersion", ""))


@asynccontextmanager
async def connect(configuration: Any, *, count: Count) -> AsyncIterator[Cluster]:
    """A Cluster with the access of a kubernetes.aio Configuration (access.py)."""
    async with client.ApiClient(configuration) as api:
        api.user_agent = user_agent()
        yield Cluster(api, count=count)


def from_response(status: int, body: str | bytes | None, headers: Mapping[str, str] | None) -> ApiError:
    """The error that an answer with a status other than 2xx means."""
    answer = _status_object(body)
    reason = str(answer.get("reason") or f"HTTP{status}")
    message = str(answer.get("message") or (body if isinstance(body, str) else "") or f"status {status}")[:1000]
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    if status == 403:
        if any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in causes or ()):
            reason = "NamespaceTerminating"
        elif "exceeded quota" in message:
            reason = "QuotaExceeded"
        elif "can be resized" in message:
            reason = "CacheResizeUnsupported"
    if status == 500 and (malformed := _MALFORMED.fullmatch(message)) is not None:
        return ApiError("Invalid", malformed[1], status=422)
    return ApiError(
        reason,
        message,
        status=status,
        retry_after=_retry_after(headers, details),
        # An apply of ours forces, and never conflicts over fields: 409 is a race.
        retryable=status == 429 or status >= 500 or status in (401, 408) or reason in _RETRYABLE,
    )


def _as_yaml(manifest: Manifest) -> str:
    """JSON that is YAML too, as which the API server reads an apply: an emoji is not two escaped halves there."""
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(manifest, ensure_ascii=False))


def _passing(error: ApiError, verb: str) -> bool:
    """Whether the same call may well succeed in a moment, and may be made twice."""
    if error.status == 0:  # nobody knows whether it was done
        return error.reason == "Unreachable" and verb != "post"
    return error.status == 429 or error.status >= 500 or error.reason == "Conflict"


def _status_object(body: str | bytes | None) -> Manifest:
    try:
        answer = json.loads(body or "")
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _retry_after(headers: Mapping[str, str] | None, details: object) -> float | None:
    """Seconds; the header of HTTP first, then the field of Kubernetes' Status."""
    given: object = (headers or {}).get("Retry-After")
    if given is None and isinstance(details, dict):
        given = details.get("retryAfterSeconds")
    try:
        seconds = float(given)  # type: ignore[arg-type]  # whatever the server sent
    except (TypeError, ValueError):
        return None
    return min(seconds, 300.0) if math.isfinite(seconds) and seconds > 0 else None
