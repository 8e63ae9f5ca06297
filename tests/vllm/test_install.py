"""How the images bring the plugin to vLLM: the init container's copy on PYTHONPATH, the baked image's defaults."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .serving import START_WITHIN

pytestmark = pytest.mark.timeout(START_WITHIN + 100)

REPOSITORY = Path(__file__).parents[2]
IMAGES = REPOSITORY / "images"

LOOK = """
import importlib.metadata, json, sys
import halffull_larry
entries = importlib.metadata.entry_points(group="vllm.general_plugins", name="halffull_larry")
imported_vllm = "vllm" in sys.modules

import vllm.entrypoints.cli.serve as serve
import vllm.plugins
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.engine.input_processor import InputProcessor

def parsed(arguments):
    parser = FlexibleArgumentParser()
    subparsers = parser.add_subparsers(dest="subparser")
    for command in serve.cmd_init():
        command.subparser_init(subparsers)
    try:
        found = parser.parse_args(arguments)
    except (Exception, SystemExit) as error:
        return repr(error)
    return {name: getattr(found, name) for name in ("model_tag", "scheduler_cls", "port", "served_model_name")}

before = InputProcessor._validate_prompt_len
vllm.plugins.load_general_plugins()
after = InputProcessor._validate_prompt_len
scheduler = resolve_obj_by_qualname("halffull_larry.SyncScheduler")
print(json.dumps({
    "package": halffull_larry.__file__,
    "entry points": [str(entry.dist.locate_file("")) for entry in entries],
    "imported vllm": imported_vllm,
    "wraps": getattr(after, "__wrapped__", None) is before,
    "wrapper": after.__code__.co_filename,
    "scheduler": sys.modules[scheduler.__module__].__file__,
    "bases": [f"{base.__module__}.{base.__qualname__}" for base in scheduler.__mro__],
    "parsed": [parsed(arguments) for arguments in json.load(sys.stdin)],
}))
"""
"""Run once, because importing vLLM takes seconds."""

OURS = "halffull_larry.Scheduler"

SERVE_CASES: list[tuple[list[str], dict[str, Any]]] = [
    (["org/m"], {"scheduler_cls": OURS}),
    (["org/m", "--served-model-name", "a b", "c"], {"scheduler_cls": OURS, "served_model_name": ["a b", "c"]}),
    (["--port", "9000", "org/m"], {"scheduler_cls": OURS, "port": 9000}),
    (["--model", "org/m", "--served-model-name", "a"], {"scheduler_cls": OURS, "served_model_name": ["a"]}),
    (["org/m", "--scheduler-cls", "mine.Scheduler"], {"scheduler_cls": "mine.Scheduler"}),
    (["org/m", "--scheduler_cls=mine.Scheduler"], {"scheduler_cls": "mine.Scheduler"}),
    (["org/m", "--scheduler-cls", "None"], {"scheduler_cls": None}),
]
"""Arguments to the baked image's container, and what vLLM's parser must make of them."""


class InitContainer(NamedTuple):
    """What images/larry.Dockerfile makes: the entrypoint, and beside it the unpacked wheel."""

    entrypoint: Path
    wheel: Path

    def run(self, target: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", self.entrypoint, target], capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> InitContainer:
    """The wheel is built by the repository's environment, as in the image: offline, from what is in the tree."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run(
        [REPOSITORY / ".venv/bin/python", "-m", "hatchling", "build", "--target", "wheel", "--directory", root],
        cwd=REPOSITORY / "larry",
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = root.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / "wheel")
    shutil.copy(IMAGES / "larry-install", root / "install")
    return InitContainer(root / "install", root / "wheel")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Seen(NamedTuple):
    """What a vLLM process with the volume on its PYTHONPATH, and nothing else of ours, saw."""

    volume: Path
    answers: dict[str, Any]


@pytest.fixture(scope="module")
def seen(image: InitContainer, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    home = tmp_path_factory.mktemp("home")
    volume = tmp_path_factory.mktemp("plugin")
    assert image.run(volume).returncode == 0
    calls = [served(given, folder=home, defaults=f"--scheduler-cls {OURS}") for given, _ in SERVE_CASES]
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(volume)},
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=START_WITHIN,  # most of which is the import
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Seen(volume, json.loads(done.stdout.splitlines()[-1]))


def served(arguments: list[str], *, folder: Path, defaults: str) -> list[str]:
    """What the baked image's entrypoint calls vLLM with."""
    fake = folder / "bin" / "vllm"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", IMAGES / "vllm-larry-serve", *arguments],
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}", "HOME": str(folder / "home"), "LARRY_DEFAULTS": defaults},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def test_vllm_finds_scheduler_and_entry_point_in_the_volume(seen: Seen) -> None:
    # Also where this environment has an editable install of the package: PYTHONPATH goes before it.
    package = seen.volume / "halffull_larry"
    assert Path(seen.answers["package"]).parent == package
    assert [Path(place) for place in seen.answers["entry points"]] == [seen.volume]
    assert not seen.answers["imported vllm"], "importing the package must not load vLLM"
    assert seen.answers["wraps"], "load_general_plugins did not reach the entry point"
    assert Path(seen.answers["wrapper"]) == package / "plugin.py"
    assert Path(seen.answers["scheduler"]) == package / "scheduler.py"
    assert "vllm.v1.core.sched.scheduler.Scheduler" in seen.answers["bases"]


def test_the_copy_is_the_wheel_and_says_its_version(image: InitContainer, tmp_path: Path) -> None:
    done = image.run(tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"halffull-larry {(REPOSITORY / 'VERSION').read_text().strip()} is in {tmp_path}\n"
    assert files(tmp_path) == files(image.wheel)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in image.wheel.iterdir())
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, f"another user's vLLM cannot read {path}"


def test_a_second_run_leaves_nothing_of_another_version_or_of_a_run_that_was_killed(
    image: InitContainer, tmp_path: Path
) -> None:
    for name in (
        "halffull_larry/gone.py",
        "halffull_larry/__pycache__/gone.pyc",
        "halffull_larry-0.0.9.dist-info/entry_points.txt",
        ".halffull_larry.Ab12/halffull_larry/half.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "somebody_elses.py").write_text("")

    assert image.run(tmp_path).returncode == 0
    assert image.run(tmp_path).returncode == 0

    assert files(tmp_path) == {**files(image.wheel), "somebody_elses.py": b""}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/nowhere", "/nowhere is no directory: mount a volume there"),
        ("/proc/self", "/proc/self cannot be written by user"),  # not by root either
    ],
)
def test_a_target_that_cannot_take_it_is_named(image: InitContainer, target: str, message: str) -> None:
    done = image.run(Path(target))

    assert done.returncode == 1
    assert done.stderr.startswith(f"halffull-larry: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_the_baked_images_options_are_defaults_to_vllms_own_parser(seen: Seen) -> None:
    for (given, expected), found in zip(SERVE_CASES, seen.answers["parsed"], strict=True):
        assert found == {"model_tag": "org/m", "port": 8000, "served_model_name": None, **expected}, given


def test_without_defaults_the_baked_image_is_vllm_as_it_is(tmp_path: Path) -> None:
    assert served(["org/m", "--port", "1"], folder=tmp_path, defaults="") == ["serve", "org/m", "--port", "1"]
    assert served([], folder=tmp_path, defaults="") == ["serve"]
    assert (tmp_path / "home").is_dir()
