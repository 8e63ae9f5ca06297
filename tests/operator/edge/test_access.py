"""How the API server is reached."""

from pathlib import Path

import pytest
import yaml

from halffull_operator import access


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return write(tmp_path, monkeypatch)


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, **cluster: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://api.example.test:6443", **cluster}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return path


async def proxies() -> tuple[str | None, str | None]:
    """Of our client, and of kopf's session."""
    configuration = await access.load()
    assert configuration.client_session_kwargs == {"trust_env": False}, "asked at every call, in a thread"
    session = access.kopf_session(configuration, seen=lambda *_: None, user_agent="x")
    try:
        assert not session.trust_env
        return configuration.proxy, str(session._default_proxy) if session._default_proxy else None
    finally:
        await session.close()


async def test_no_proxy_unless_one_is_named() -> None:
    assert await proxies() == (None, None)


async def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.test:3128")
    assert await proxies() == ("http://proxy.example.test:3128",) * 2
    monkeypatch.setenv("NO_PROXY", ".example.test")
    assert await proxies() == (None, None)


async def test_the_proxy_of_a_kubeconfig_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch, **{"proxy-url": "http://other.example.test:3128"})
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.test:3128")
    assert await proxies() == ("http://other.example.test:3128",) * 2
