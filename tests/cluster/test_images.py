"""The images, without a cluster: what they are built from, and the stand-in for `vllm serve`."""

import importlib.machinery
import importlib.util
from collections.abc import Callable

import pytest

from tests.cluster import images
from tests.cluster.images import ENGINE, EXTPROC, LARRY, OPERATOR, REPOSITORY, SMALL, VLLM

COMMON = ["serve", "org/m", "--served-model-name", "a", "b", "--host=::", "--port=8000", "--shutdown-timeout=60"]


@pytest.fixture(scope="module")
def translate() -> Callable[[list[str]], list[str]]:
    path = str(REPOSITORY / "images/engine-vllm")
    loader = importlib.machinery.SourceFileLoader("engine_vllm", path)
    spec = importlib.util.spec_from_loader("engine_vllm", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    function: Callable[[list[str]], list[str]] = module.translate
    return function


def test_the_operators_command_line_becomes_the_emulated_engines(translate: Callable[[list[str]], list[str]]) -> None:
    insides = ["--tensor-parallel-size=1", "--pipeline-parallel-size=1", "--data-parallel-size=1", "--revision=main"]
    larry = '{"larry":{"policy":"LARRY","alpha":500,"load_port":9400,"load_host":"::"}}'
    plugin = ["--scheduler-cls=halffull_larry.Scheduler", f"--additional-config={larry}", "--no-async-scheduling"]
    assert translate([*COMMON, *insides, "--max-model-len=4096", *plugin, "--speed=10"]) == [
        *("halffull", "engine", "--model=a", "--policy=LARRY", "--alpha=500", "--load-port=9400"),
        *("--host=::", "--port=8000", "--shutdown-timeout=60", "--max-model-len=4096", "--speed=10"),
    ]


def test_without_the_plugin_it_keeps_its_own_order(translate: Callable[[list[str]], list[str]]) -> None:
    assert translate(["serve", "org/m", "--port=8000"]) == ["halffull", "engine", "--model=org/m", "--port=8000"]


@pytest.mark.parametrize(
    ("image", "inside", "outside"),
    [
        (OPERATOR, "operator/src/halffull_operator/plan.py", "larry/src/halffull_larry/queue.py"),
        (EXTPROC, "requirements/extproc.txt", "operator/src/halffull_operator/plan.py"),
        (LARRY, "images/larry-install", "requirements/vllm.txt"),
        (ENGINE, "images/engine-vllm", "images/larry-install"),
        (VLLM, "tests/vllm/tiny_model.py", "images/engine-vllm"),
        (VLLM, "requirements/vllm.txt", "lab/src/halffull_lab/cli.py"),
    ],
)
def test_an_image_is_built_anew_when_what_it_copies_changes(image: images.Image, inside: str, outside: str) -> None:
    inputs = set(images._inputs(image))
    assert REPOSITORY / inside in inputs
    assert REPOSITORY / outside not in inputs
    assert image.dockerfile in inputs


def test_nothing_is_copied_that_the_build_leaves_out() -> None:
    """.dockerignore lets through what the Dockerfiles name."""
    kept = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for image in SMALL:
        for path in images._inputs(image):
            name = path.relative_to(REPOSITORY)
            if path != image.dockerfile and name.parts[:2] != ("hack", "cluster"):
                assert {str(name), *map(str, name.parents)} & kept, f"{name} is not in .dockerignore"


def test_each_image_has_a_file_of_its_own() -> None:
    tars = {image.tar for image in (*SMALL, VLLM)}
    assert len(tars) == len(SMALL) + 1
