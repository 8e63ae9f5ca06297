"""Certificates: Envoy's rotates on disk without a listener change, and so does the picker's own."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.tls import SelfSigned, TlsFiles, self_signed
from halffull_extproc.xds.gateway_config import GatewayConfig
from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import Engine, Gateway, Picker, eventually, lines, start_envoy


def mount(folder: Path, version: str) -> TlsFiles:
    """Write a new pair as Kubernetes mounts a secret: files are links through `..data`, and that link is moved."""
    pair = self_signed()
    data = folder / f"..{version}"
    data.mkdir(parents=True)
    (data / "tls.crt").write_bytes(pair.certificate)
    (data / "tls.key").write_bytes(pair.key)
    (folder / "..new").symlink_to(data.name)
    (folder / "..new").replace(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return TlsFiles(str(folder / "tls.crt"), str(folder / "tls.key"))


def current(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.cert_file).read_text())


async def presented(port: int, *, alpn: str = "http/1.1") -> bytes:
    """The certificate that a server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def test_ingress_certificate_rotates_without_a_listener_change(gateway: StartGateway, tmp_path: Path) -> None:
    files = mount(tmp_path / "tls", "1")
    running = await gateway(engines=1, tls=files)
    url = f"https://127.0.0.1:{running.port}"
    assert await presented(running.port) == current(files)
    async with running.session.post(url + "/v1/stream", data=b"{}", ssl=False) as response:
        stream = lines(response)
        assert await anext(stream) == b"data: first"
        for version in ("2", "3"):
            mount(tmp_path / "tls", version)

            async def rotated() -> bool:
                return await presented(running.port) == current(files)

            await eventually(rotated, what="the new certificate")
        running.engines[0].finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"
    async with running.session.post(url + "/v1/completions", ssl=False) as response:
        assert response.status == 200
    assert await running.listener_changes() == {}


async def test_missing_certificate_is_a_rejection_that_is_reported(tmp_path: Path, socket_folder: Path) -> None:
    missing = TlsFiles(str(tmp_path / "none.crt"), str(tmp_path / "none.key"))
    async with AsyncExitStack() as stack:
        picker = Picker(f"unix:{socket_folder}/p", GatewayConfig(listen="127.0.0.1:0", tls=missing))
        await picker.start()
        stack.push_async_callback(picker.stop)
        envoy, _ = await start_envoy(tmp_path, picker)
        stack.push_async_callback(envoy.stop)
        ads = picker.ads
        assert ads is not None
        await eventually(lambda: ads.rejection, within=20, what="the rejection")
        assert "Secret: " in (ads.rejection or "")
        assert "none.crt" in (ads.rejection or "")


@pytest.mark.parametrize("given", [True, False])
async def test_envoy_reaches_the_picker_by_tls(tmp_path: Path, *, given: bool) -> None:
    tls = mount(tmp_path / "tls", "1") if given else SelfSigned()
    async with AsyncExitStack() as stack:
        engine = await Engine().start()
        stack.push_async_callback(engine.stop)
        picker = Picker("127.0.0.1:0", GatewayConfig(listen="127.0.0.1:0"), tls=tls)
        picker.set_endpoints([Endpoint(engine.address)])
        await picker.start()
        stack.push_async_callback(picker.stop)
        assert picker.server is not None
        envoy, ready_port = await start_envoy(tmp_path, f"127.0.0.1:{picker.server.port}", tls=tls)
        stack.push_async_callback(envoy.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        running = Gateway(envoy, picker, [engine], await envoy.listening(), session, ready_port)
        assert (await running.ask())[0] == 200
        assert len(picker.pool.picks) == 1
        await eventually(lambda: len(picker.pool.logged) == 1, what="the access log")
        if not given:
            return
        assert isinstance(tls, TlsFiles)
        before = await presented(picker.server.port, alpn="h2")
        assert before == current(tls)
        mount(tmp_path / "tls", "2")
        assert await presented(picker.server.port, alpn="h2") == current(tls) != before
        (tmp_path / "tls" / "..2" / "tls.key").write_text("half written")
        assert await presented(picker.server.port, alpn="h2") == current(tls)  # the last good pair
        assert (await running.ask())[0] == 200
