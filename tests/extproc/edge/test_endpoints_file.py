# ruff: noqa: E501 (tables of messages read better with one a line)
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halffull_extproc.discovery.file import EndpointsFile, FileError, WatchedFile, parse_endpoints, read_text
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.yaml_text import SettingsError

from .waiting import until


def parse(text: str, ranks: int | None = 1) -> list[Endpoint]:
    return parse_endpoints(text, source="endpoints.yaml", load_port=9400, ranks=ranks)


def one(address: str, **more: object) -> str:
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return f"endpoints:\n  - {{address: '{address}'{rest}}}\n"


def test_the_example_of_the_contract() -> None:
    text = 'endpoints: [{address: "127.0.0.1:8001", loadPort: 9401}]'
    assert parse(text) == [Endpoint(address="127.0.0.1:8001", load_port=9401)]


def test_the_load_port_has_a_default_and_nobody_is_legal() -> None:
    assert parse(one("10.0.0.1:8000")) == [Endpoint(address="10.0.0.1:8000", load_port=9400)]
    assert parse("endpoints: []") == []


def test_ipv6_stands_in_brackets_and_in_its_canonical_spelling() -> None:
    assert [e.address for e in parse(one("[0:0::0001]:8001"))] == ["[::1]:8001"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (one("engine-0.llama:8000"), "endpoints.yaml:2: endpoints[0].address: 'engine-0.llama' is not an IP address, and ho"),
        (one("localhost:8000"), "endpoints.yaml:2: endpoints[0].address: 'localhost' is not an IP address"),
        (one("::1:8000"), "endpoints.yaml:2: endpoints[0].address: '::1:8000' is not IP:PORT (an IPv6 address needs br"),
        (one("[10.0.0.1]:80"), "endpoints.yaml:2: endpoints[0].address: '[10.0.0.1]:80': brackets belong around IPv6"),
        (one("10.0.0.1"), "endpoints.yaml:2: endpoints[0].address: '10.0.0.1' is not IP:PORT"),
        (one("10.0.0.1:0"), "endpoints.yaml:2: endpoints[0].address: port 0 is not from 1 to 65535"),
        (one("10.0.0.1:65536"), "endpoints.yaml:2: endpoints[0].address: port 65536 is not"),
        (one("10.0.0.01:80"), "endpoints.yaml:2: endpoints[0].address: '10.0.0.01' is not an IP address"),
        (one("0.0.0.0:80"), "endpoints.yaml:2: endpoints[0].address: '0.0.0.0:80' is not the address of one engine"),
        (one("[ff02::1]:80"), "endpoints.yaml:2: endpoints[0].address: '[ff02::1]:80' is not the address of one engine"),
        (one("[fe80::1%eth0]:80"), "endpoints.yaml:2: endpoints[0].address: '[fe80::1%eth0]:80': an address with a zone"),
        (one("[::ffff:10.0.0.1]:80"), "endpoints.yaml:2: endpoints[0].address: '[::ffff:10.0.0.1]:80' is an IPv4 address"),
        (one("10.0.0.1:80", loadPort=0), "endpoints.yaml:2: endpoints[0].loadPort: '0' does not fit; allowed: a whole number"),
        (one("10.0.0.1:80", port=1), "endpoints.yaml:2: endpoints[0].port: unknown key; allowed: the keys address, loadPort"),
        ("endpoints:\n- address: 10.0.0.1:80\n- address: 10.0.0.2:80\n- loadPort: 4\n",
         "endpoints.yaml:4: endpoints[2].address: is missing"),
        ("endpoints:\n- address: 10.0.0.1:80\n- address: '10.0.0.1:80'\n",
         "endpoints.yaml:3: endpoints[1].address: 10.0.0.1:80 is endpoints[0] already"),
        ("endpoints:\n- address: '[::1]:80'\n  loadPort: 1\n- address: '[0::1]:80'\n  loadPort: 2\n",
         "endpoints.yaml:4: endpoints[1].address: [::1]:80 is endpoints[0] already"),
        ("endpoints:\n- address: 127.0.0.1:81\n- address: 127.0.0.1:82\n",
         "endpoints.yaml:3: endpoints[1].loadPort: the load report at 127.0.0.1:9400 belongs to 127.0.0.1:81 already"),
        ("", "endpoints.yaml:1: the text is empty"),
        ("endpoints:\n", "endpoints.yaml:1: endpoints: has no value; allowed: a list"),
        ("# nothing yet\nother: 1\n", "endpoints.yaml:2: other: unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_line(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(text)
    assert str(refused.value).startswith(message)


def test_the_ports_of_ranks_must_not_overlap_and_must_exist() -> None:
    text = "endpoints:\n- {address: 127.0.0.1:81, loadPort: 9400}\n- {address: 127.0.0.1:82, loadPort: 9401}\n"
    assert len(parse(text, ranks=1)) == 2
    with pytest.raises(SettingsError, match=r"endpoints\[1\].loadPort: the load report at 127.0.0.1:9401 belongs to"):
        parse(text, ranks=2)
    with pytest.raises(SettingsError, match="rank 1 would be asked on port 65536"):
        parse(one("127.0.0.1:81", loadPort=65535), ranks=2)


def test_without_reports_load_ports_do_not_matter() -> None:
    assert len(parse("endpoints:\n- address: 127.0.0.1:81\n- address: 127.0.0.1:82\n", ranks=None)) == 2


def test_a_thousand_endpoints_are_fine_and_a_megabyte_is_the_limit() -> None:
    lines = [f"- address: 10.0.{number // 250}.{number % 250 + 1}:8000\n" for number in range(1000)]
    assert len(parse("endpoints:\n" + "".join(lines))) == 1000
    with pytest.raises(SettingsError, match="at most 1048576 are read"):
        parse("endpoints: []\n" + "#" * 1024 * 1024)


# Watching


class Told:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.trouble = ""
        self.troubles: list[str] = []

    def changed(self, endpoints: list[Endpoint]) -> None:
        self.lists.append([endpoint.address for endpoint in endpoints])

    def say(self, line: str) -> None:
        self.trouble = line
        self.troubles.append(line)


@contextlib.asynccontextmanager
async def watched(path: Path) -> AsyncIterator[Told]:
    told = Told()
    source = EndpointsFile(path=path, load_port=9400, ranks=None, changed=told.changed, trouble=told.say, interval=0.01)
    task = asyncio.create_task(source.run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_edit_in_place_and_a_replacement_are_both_noticed(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(one("10.0.0.1:80"))
    async with watched(path) as told:
        await until(lambda: told.lists == [["10.0.0.1:80"]])
        path.write_text(one("10.0.0.2:80"))
        await until(lambda: told.lists[1:] == [["10.0.0.2:80"]])
        (tmp_path / "new").write_text(one("10.0.0.3:80"))
        (tmp_path / "new").replace(path)
        await until(lambda: told.lists[2:] == [["10.0.0.3:80"]])


async def test_a_replacement_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(one("10.0.0.1:80"))
    async with watched(path) as told:
        await until(lambda: told.lists)
        (tmp_path / "new").write_text(one("10.0.0.2:80"))
        before = path.stat()
        os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "new").replace(path)
        await until(lambda: told.lists[-1] == ["10.0.0.2:80"])


async def test_the_links_of_a_mounted_config_map_are_followed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "endpoints.yaml").write_text(one(f"10.0.0.{1 if name == 'a' else 2}:80"))
    (tmp_path / "..data").symlink_to("a")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    async with watched(path) as told:
        await until(lambda: told.lists == [["10.0.0.1:80"]])
        (tmp_path / "..tmp").symlink_to("b")
        (tmp_path / "..tmp").replace(tmp_path / "..data")
        await until(lambda: told.lists[1:] == [["10.0.0.2:80"]])


async def test_a_bad_edit_and_a_vanished_file_keep_the_last_good_list(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(one("10.0.0.1:80"))
    async with watched(path) as told:
        await until(lambda: told.lists)
        path.write_text("endpoints:\n- address: engine:80\n")
        await until(lambda: "endpoints.yaml:2: endpoints[0].address: 'engine'" in told.trouble)
        path.unlink()
        await until(lambda: "No such file" in told.trouble)
        path.write_text(one("10.0.0.2:80"))
        await until(lambda: told.lists[1:] == [["10.0.0.2:80"]])
        await until(lambda: told.trouble == "")


async def test_touching_a_bad_file_does_not_hide_that_it_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints: {}\n")
    async with watched(path) as told:
        await until(lambda: told.trouble)
        said = len(told.troubles)
        os.utime(path, ns=(1, 1))
        await until(lambda: len(told.troubles) > said)
        assert all(told.troubles)


async def test_only_another_text_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text("a")
    texts: list[str] = []
    wells: list[str] = []
    file = WatchedFile(path=path, max_bytes=10, changed=texts.append, trouble=wells.append, interval=0.01, seen="a")
    task = asyncio.create_task(file.run())
    try:
        await until(lambda: wells)
        path.write_text("b")
        await until(lambda: texts)
        os.utime(path, ns=(1, 1))
        count = len(wells)
        await until(lambda: len(wells) > count)
        assert texts == ["b"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"ok\n\xff")
    with pytest.raises(FileError, match="x:2: not UTF-8"):
        read_text(path, max_bytes=10)
    with pytest.raises(FileError, match="more than 3 bytes"):
        read_text(path, max_bytes=3)
    with pytest.raises(FileError, match="Is a directory"):
        read_text(tmp_path, max_bytes=3)


async def test_a_file_that_is_still_being_written_is_left_alone_until_it_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "picker.yaml"
    looks: list[int] = []

    def stamp(_: Path) -> tuple[int, int, int, int]:
        looks.append(len(looks))
        rests = len(looks) > 6  # each look before finds another size
        path.write_text("whole" if rests else "ha")
        return 1, 1, 1, 99 if rests else len(looks)

    monkeypatch.setattr("halffull_extproc.discovery.file._stamp", stamp)
    texts: list[str] = []
    file = WatchedFile(
        path=path, max_bytes=10, changed=texts.append, trouble=lambda _: None, interval=0.001, settle=0.001
    )
    task = asyncio.create_task(file.run())
    try:
        await until(lambda: texts)
        assert texts == ["whole"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
