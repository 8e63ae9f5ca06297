"""The images of a cluster under test: built from the repository's Dockerfiles, each under the name that it is asked by.

An image whose inputs did not change is not built again. `python -m tests.cluster.images` builds all and says what each
took.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.operator.docs.pages import FIRST

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MKIMAGE: Final = REPOSITORY / "hack" / "cluster" / "mkimage"
HOME: Final = Path(os.environ.get("CLUSTER_HOME", "~/.cache/halffull-cluster")).expanduser()
VERSION: Final = (REPOSITORY / "VERSION").read_text().strip()
_HUB: Final = "docker.io/library"
_VLLM_BASE: Final = f"localhost/vllm-larry-cpu:{VERSION}"
_STAND_IN: Final = Path(__file__).parent / "stand_in"
_COPIED: Final = re.compile(
    r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$|^RUN --mount=type=bind,source=([^,\s]+)", re.MULTILINE
)
"""What a Dockerfile takes from its context."""


@dataclass(frozen=True)
class Image:
    """One image: the name that pods ask for, and the Dockerfile it is made by."""

    reference: str
    dockerfile: Path

    @property
    def tar(self) -> Path:
        """Where `mkimage` puts it."""
        return HOME / "images" / (self.reference.rpartition("/")[2].replace(":", "_") + ".tar")


OPERATOR: Final = Image(f"{_HUB}/halffull-operator:{VERSION}", REPOSITORY / "images/operator.Dockerfile")
EXTPROC: Final = Image(f"{_HUB}/halffull-extproc:{VERSION}", REPOSITORY / "images/extproc.Dockerfile")
LARRY: Final = Image(f"{_HUB}/halffull-larry:{VERSION}", REPOSITORY / "images/larry.Dockerfile")
ENGINE: Final = Image(f"{_HUB}/halffull-engine:{VERSION}", REPOSITORY / "images/engine.Dockerfile")
VLLM: Final = Image("docker.io/vllm/vllm-openai-cpu:v0.32.0", _STAND_IN / "Dockerfile")
"""vLLM's own image is not there: ours for CPUs stands in, with the model of docs/first-serving.md in it."""
OWN: Final = (OPERATOR, EXTPROC, LARRY)
"""Those of a release: the chart names them by its appVersion."""
SMALL: Final = (*OWN, ENGINE)
_VLLM_DOCKERFILE: Final = REPOSITORY / "images/vllm-larry-cpu.Dockerfile"


def documented_model() -> str:
    """The model of the first example in docs/first-serving.md, such as Qwen/Qwen2.5-0.5B-Instruct."""
    _, serving = next(FIRST.documents())
    uri: str = serving["spec"]["model"]["uri"]
    return uri.removeprefix("hf://").partition("@")[0]


def envoy() -> Path:
    """The tar of Envoy's stand-in."""
    subprocess.run([MKIMAGE, "envoy"], check=True, stdout=subprocess.DEVNULL)
    return HOME / "images" / "envoy.tar"


def build(image: Image, *, force: bool = False) -> float:
    """Build an image, unless its inputs are what they were; seconds that it took.

    Raises:
        subprocess.CalledProcessError: it cannot be built; the reason is on stderr.
    """
    started = time.monotonic()
    wanted, stamp = digest(image), image.tar.with_suffix(".inputs")
    if force or not image.tar.exists() or not stamp.exists() or stamp.read_text() != wanted:
        stamp.unlink(missing_ok=True)
        if image is VLLM:
            _build_vllm(image)
        else:
            _mkimage("build", image.reference, REPOSITORY, image.dockerfile, VERSION=VERSION)
        stamp.write_text(wanted)
    return time.monotonic() - started


def _build_vllm(image: Image) -> None:
    _mkimage("stage", _VLLM_BASE, REPOSITORY, _VLLM_DOCKERFILE, VERSION=VERSION)
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(_STAND_IN / "weights.py", context)
        shutil.copy(REPOSITORY / "tests/vllm/tiny_model.py", context)
        _mkimage("build", image.reference, Path(context), image.dockerfile, VLLM=_VLLM_BASE, MODEL=documented_model())


def _mkimage(command: str, reference: str, context: Path, dockerfile: Path, **arguments: str) -> None:
    options = [option for key, value in arguments.items() for option in ("--build-arg", f"{key}={value}")]
    subprocess.run(
        [MKIMAGE, command, reference, context, "-f", dockerfile, *options], check=True, stdout=subprocess.DEVNULL
    )


def digest(image: Image) -> str:
    """A hash of all that an image is built from: Dockerfiles, what they copy, and the stand-ins below them."""
    files = sorted(set(_inputs(image)))
    listed = [(str(file.relative_to(REPOSITORY)), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    return hashlib.sha256(json.dumps([image.reference, VERSION, documented_model(), listed]).encode()).hexdigest()


def _inputs(image: Image) -> Iterator[Path]:
    dockerfile = image.dockerfile
    if image is VLLM:
        yield from _STAND_IN.iterdir()
        yield REPOSITORY / "tests/vllm/tiny_model.py"
        dockerfile = _VLLM_DOCKERFILE
    yield dockerfile
    yield MKIMAGE
    for folder in ("debian", "python"):
        yield from (REPOSITORY / "hack/cluster/images" / folder).iterdir()
    for copied in _COPIED.findall(dockerfile.read_text()):
        for name in " ".join(copied).split():
            path = REPOSITORY / name
            found = path.rglob("*") if path.is_dir() else [path]
            yield from (
                one for one in found if one.is_file() and "__pycache__" not in one.parts and ".egg-info" not in str(one)
            )


if __name__ == "__main__":
    envoy()
    for each in (*SMALL, VLLM):
        spent = build(each)
        print(f"{each.reference}: {each.tar.stat().st_size / 1e6:.0f} MB, {spent:.0f} s", flush=True)  # noqa: T201
