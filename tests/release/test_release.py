"""hack/release: what it refuses, and that its archives and lists are right and the same twice."""

import hashlib
import io
import json
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "hack/release"))
import archives  # noqa: E402 - scripts of one folder, which import each other by bare names
import checks  # noqa: E402
import images  # noqa: E402
import sbom  # noqa: E402

VERSION = (REPOSITORY / "VERSION").read_text().strip()


def _tree(root: Path, *, version: str = "1.2.3", chart: str = "1.2.3", heading: str = "## 1.2.3 (2026-01-01)") -> Path:
    (root / "charts/halffull").mkdir(parents=True)
    (root / "VERSION").write_text(f"{version}\n")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    (root / "charts/halffull/Chart.yaml").write_text(yaml.safe_dump({"version": chart, "appVersion": chart}))
    return root


def test_a_tree_that_agrees_with_itself_has_no_problem(tmp_path: Path) -> None:
    assert checks.problems(_tree(tmp_path), "1.2.3") == []
    assert checks.problems(tmp_path, None) == []


@pytest.mark.parametrize(
    ("tree", "asked", "said"),
    [
        ({}, "1.2.4", "--version 1.2.4, but VERSION says 1.2.3"),
        ({"heading": "## Unreleased"}, None, 'CHANGELOG.md has no heading "## 1.2.3": rename "## Unreleased"'),
        ({"heading": "## 1.2.30"}, None, 'has no heading "## 1.2.3"'),
        ({"heading": "## 1x2.3"}, None, 'has no heading "## 1.2.3"'),
        ({"chart": "1.2.2"}, None, "Chart.yaml: appVersion is 1.2.2, VERSION says 1.2.3"),
    ],
)
def test_a_contradiction_is_named_with_what_to_do(
    tmp_path: Path, tree: dict[str, str], asked: str | None, said: str
) -> None:
    assert any(said in problem for problem in checks.problems(_tree(tmp_path, **tree), asked))


def test_this_repository_s_chart_has_the_version() -> None:
    assert not [problem for problem in checks.problems(REPOSITORY, None) if "Chart.yaml" in problem]


def test_the_chart_s_package_holds_the_chart_and_no_trace_of_the_machine(tmp_path: Path) -> None:
    chart = tmp_path / "halffull"
    (chart / "templates").mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "templates/a.yaml", "values.yaml.orig"):
        (chart / name).write_text(name)
    (chart / ".helmignore").write_text("# not these\n*.orig\n")
    first, second = tmp_path / "1.tgz", tmp_path / "2.tgz"
    archives.package_chart(chart, first, mtime=7)
    (chart / "values.yaml").chmod(0o600)
    os.utime(chart / "values.yaml", (99, 99))
    archives.package_chart(chart, second, mtime=7)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert [member.name for member in archive] == [
            *("halffull/Chart.yaml", "halffull/.helmignore", "halffull/templates/a.yaml", "halffull/values.yaml"),
        ]
        assert {(member.mtime, member.mode, member.uid, member.uname) for member in archive} == {(7, 0o644, 0, "")}


def test_the_sums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / ".gitignore").write_bytes(b"*")
    archives.write_sums(tmp_path)
    archives.write_sums(tmp_path)  # it does not count itself
    sums = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in "ab"]
    assert (tmp_path / "SHA256SUMS").read_text() == "".join(sums)


def _tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            archives.add(archive, name, io.BytesIO(content), len(content))
    return made.getvalue()


def _image(path: Path, *layers: dict[str, bytes]) -> list[bytes]:
    """A docker-archive of these layers, which are returned as they lie in it."""
    packed = [_tar(layer) for layer in layers]
    names = [f"{number}.tar" for number in range(len(packed))]
    manifest = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": names}]
    files = {"config.json": b'{"os":"linux"}', "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar(files | dict(zip(names, packed, strict=True))))
    return packed


def test_an_oci_archive_has_the_digest_that_its_manifest_has(tmp_path: Path) -> None:
    layers = _image(tmp_path / "docker.tar", {"a": b"1"}, {"b": b"2"}, {"a": b"1"})
    digest = images.to_oci(tmp_path / "docker.tar", tmp_path / "oci.tar", tag="1.2.3")
    with tarfile.open(tmp_path / "oci.tar") as archive:
        held: dict[str, bytes] = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    (described,) = json.loads(held["index.json"])["manifests"]
    assert described["digest"] == digest
    assert described["annotations"] == {"org.opencontainers.image.ref.name": "1.2.3"}
    manifest = held[f"blobs/sha256/{digest.removeprefix('sha256:')}"]
    assert hashlib.sha256(manifest).hexdigest() == digest.removeprefix("sha256:")
    assert described["size"] == len(manifest)
    read: dict[str, Any] = json.loads(manifest)
    wanted = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert [layer["digest"] for layer in read["layers"]] == wanted
    assert held[f"blobs/sha256/{read['config']['digest'].removeprefix('sha256:')}"] == b'{"os":"linux"}'
    for name, content in held.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    before = (tmp_path / "oci.tar").read_bytes()
    assert images.to_oci(tmp_path / "docker.tar", tmp_path / "oci.tar", tag="1.2.3") == digest
    assert (tmp_path / "oci.tar").read_bytes() == before


DPKG = b"""Package: libc6
Status: install ok installed
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def test_what_is_in_an_image_is_found_and_what_a_later_layer_took_away_is_not(tmp_path: Path) -> None:
    _image(
        tmp_path / "docker.tar",
        {
            "var/lib/dpkg/status": DPKG,
            "opt/lib/old-1.dist-info/METADATA": b"Name: old\nVersion: 1\n",
            "opt/x/Gone.dist-info/METADATA": b"Name: gone\nVersion: 1\n",
            "licenses/busybox/NOTICE": b"BusyBox v1.35.0 (Debian 1:1.35.0-4+b5) multi-call binary.\n",
        },
        {
            "opt/lib/.wh.old-1.dist-info": b"",
            "opt/.wh.x": b"",
            "opt/lib/My_Lib-2.dist-info/METADATA": b"Name: My.Lib\nVersion: 2\nLicense-Expression: MIT\n\nVersion: 9\n",
        },
    )
    found = images.contents(tmp_path / "docker.tar")
    assert [part["purl"] for part in found] == [
        "pkg:deb/debian/busybox-static@1:1.35.0-4+b5",
        "pkg:deb/debian/libc6@2.36-9",
        "pkg:pypi/my-lib@2",
    ]
    assert found[-1]["licenses"] == [{"expression": "MIT"}]
    bom = sbom.of_image("x", "1.2.3", "sha256:" + 64 * "0", found, timestamp="2026-01-01T00:00:00+00:00")
    sbom.write(bom, tmp_path / "x.cdx.json")  # the schema takes it
    assert json.loads((tmp_path / "x.cdx.json").read_text()) == bom


def test_an_sbom_that_the_schema_refuses_is_not_written(tmp_path: Path) -> None:
    bom = sbom.of_image("x", "1", "sha256:0", [{"type": "thing", "name": "y"}], timestamp="2026-01-01T00:00:00+00:00")
    with pytest.raises(AssertionError, match=r"x\.cdx\.json is no CycloneDX"):
        sbom.write(bom, tmp_path / "x.cdx.json")
    assert not (tmp_path / "x.cdx.json").exists()


def test_a_package_s_sbom_is_what_its_lock_pins() -> None:
    bom = sbom.of_package(REPOSITORY, "lab", VERSION, epoch=1_700_000_000)
    lines = (REPOSITORY / "requirements/lab.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if re.match(r"\S+==", line)}
    named = {part["name"].lower() for part in bom["components"]}
    assert named == pinned | {"halffull-larry", "halffull-extproc"}
    assert bom["metadata"]["component"]["purl"] == f"pkg:pypi/halffull-lab@{VERSION}"
    assert bom["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")


def test_the_plugin_s_sbom_says_that_it_needs_nothing_and_is_the_same_twice(tmp_path: Path) -> None:
    bom = sbom.of_package(REPOSITORY, "larry", VERSION, epoch=1_700_000_000)
    sbom.write(bom, tmp_path / "larry.cdx.json")
    assert bom["components"] == []
    assert bom == sbom.of_package(REPOSITORY, "larry", VERSION, epoch=1_700_000_000)
