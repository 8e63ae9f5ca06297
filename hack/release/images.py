"""Images: built by hack/cluster/mkimage, written as OCI archives, whose manifest keeps its digest in a registry."""

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any

from archives import add, sha256

# vllm-larry is not among them: its base is vLLM's own image, which whoever has it builds on.
IMAGES = ("operator", "extproc", "larry", "engine")
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"

Json = dict[str, Any]


def problems() -> list[str]:
    """Why images cannot be built here."""
    missing = [name for name in ("buildah", "mmdebstrap", "unshare") if shutil.which(name) is None]
    found = [f"images need {' and '.join(missing)}: hack/cluster/cluster build node installs them"] if missing else []
    if os.geteuid() != 0:
        found.append("images need root")
    return [f"{each}; or make the rest with ARGS=--no-images" for each in found]


def build(root: Path, name: str, version: str) -> Path:
    """The docker-archive of an image, built from its Dockerfile."""
    command = [str(root / "hack/cluster/mkimage"), "build", f"localhost/halffull-{name}:{version}", str(root)]
    command += ["-f", str(root / f"images/{name}.Dockerfile"), "--build-arg", f"VERSION={version}"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(answer.stdout.split()[-1])


def to_oci(source: Path, target: Path, *, tag: str) -> str:
    """Turn a docker-archive into an OCI archive; returns the manifest's digest, `sha256:…`.

    Layers stay uncompressed: then the digest depends on what is in the image and on no compressor's version.
    """
    with tarfile.open(source) as archive, tarfile.open(target, "w") as written:
        (image,) = json.load(_file(archive, "manifest.json"))

        def blob(content: bytes) -> Json:
            digest = sha256(io.BytesIO(content))
            add(written, f"blobs/sha256/{digest}", io.BytesIO(content), len(content))
            return {"digest": f"sha256:{digest}", "size": len(content)}

        layers: dict[str, Json] = {}
        for name in image["Layers"]:
            digest, size = sha256(_file(archive, name)), archive.getmember(name).size
            if digest not in layers:
                add(written, f"blobs/sha256/{digest}", _file(archive, name), size)
            layers[digest] = {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}
        config = {"mediaType": _CONFIG, **blob(_file(archive, image["Config"]).read())}
        order = [sha256(_file(archive, name)) for name in image["Layers"]]
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config,
            "layers": [layers[digest] for digest in order],
        }
        described = {"mediaType": _MANIFEST, **blob(_dump(manifest))}
        described["annotations"] = {"org.opencontainers.image.ref.name": tag}
        for name, content in {
            "index.json": _dump({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}),
            "oci-layout": _dump({"imageLayoutVersion": "1.0.0"}),
        }.items():
            add(written, name, io.BytesIO(content), len(content))
    digest_of_manifest: str = described["digest"]
    return digest_of_manifest


def contents(source: Path) -> list[Json]:
    """CycloneDX components of a docker-archive: Debian's packages by dpkg's list, Python's by their metadata."""
    files: dict[str, bytes] = {}
    with tarfile.open(source) as archive:
        (image,) = json.load(_file(archive, "manifest.json"))
        for name in image["Layers"]:
            with tarfile.open(fileobj=_file(archive, name)) as layer:
                for member in layer:
                    path = PurePosixPath("/", member.name)
                    if path.name.startswith(".wh."):  # a later layer takes a file or a folder away
                        gone = str(path.with_name(path.name.removeprefix(".wh.")))
                        files = {each: data for each, data in files.items() if not f"{each}/".startswith(f"{gone}/")}
                    elif member.isfile() and _tells(path):
                        read = layer.extractfile(member)
                        assert read is not None
                        files[str(path)] = read.read()
    found = [part for path, data in files.items() for part in _parts(path, data.decode(errors="replace"))]
    return sorted({part["bom-ref"]: part for part in found}.values(), key=lambda part: str(part["bom-ref"]))


def _tells(path: PurePosixPath) -> bool:
    return path.match("*.dist-info/METADATA") or str(path) in {"/var/lib/dpkg/status", "/licenses/busybox/NOTICE"}


def _parts(path: str, text: str) -> list[Json]:
    if path.endswith("METADATA"):
        about = HeaderParser().parsestr(text)
        name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
        return [component(f"pkg:pypi/{name}@{about['Version']}", name, about["Version"], about["License-Expression"])]
    if path.endswith("NOTICE"):  # the plugin's image is made of files, without a package manager's list
        version = re.search(r"\(Debian ([^)]+)\)", text)
        return [_debian("busybox-static", version[1])] if version else []
    packages = [HeaderParser().parsestr(each) for each in text.split("\n\n") if each.strip()]
    return [_debian(each["Package"], each["Version"]) for each in packages if "installed" in each["Status"].split()]


def _debian(name: str, version: str) -> Json:
    return component(f"pkg:deb/debian/{name}@{version}", name, version)


def component(purl: str, name: str, version: str, licence: str | None = None) -> Json:
    """A library, as CycloneDX writes it."""
    made: Json = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        made["licenses"] = [{"expression": licence}]
    return made


def _file(archive: tarfile.TarFile, name: str) -> Any:
    found = archive.extractfile(name)
    assert found is not None
    return found


def _dump(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
