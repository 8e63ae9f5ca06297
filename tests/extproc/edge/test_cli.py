import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import structlog
import yaml

from halffull_extproc.cli import main

from .reports import REPORT
from .test_settings import FULL, SMALLEST

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()  # `run` sets up the logs of its process, which here is everybody's


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "picker.yaml").write_text(SMALLEST)
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '127.0.0.1:8001', loadPort: 9401}]\n")
    return tmp_path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(("name", "contract"), [("picker", "picker"), ("load-report", "load-report")])
def test_the_checked_in_schemas_are_those_of_the_code(
    name: str, contract: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", contract]) == 0
    written = (ROOT / "schemas" / f"{name}.schema.json").read_text()
    assert capsys.readouterr().out == written, "run `make schemas`"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_of_the_load_report_agrees_with_the_code() -> None:
    schema = validator("load-report")
    schema.validate(REPORT)
    schema.validate({**REPORT, "unknown": 1})
    for wrong in ({"version": 2}, {"queued_tokens": -1}, {"age": "0"}, {"max_model_len": 0}):
        assert not schema.is_valid({**REPORT, **wrong})
    for field in REPORT:
        assert not schema.is_valid({name: value for name, value in REPORT.items() if name != field})


def test_the_schema_of_the_picker_agrees_with_the_code() -> None:
    schema = validator("picker")
    schema.validate(yaml.safe_load(SMALLEST))
    schema.validate(FULL)
    for wrong in (
        {"version": 2}, {"policy": "Best"}, {"endpoints": {}}, {"endpoints": {"file": "a", "inferencePool": {}}},
        {"load": {}}, {"load": {"report": {}, "metrics": {}}}, {"poll": {"interval": "5"}}, {"more": 1},
        {"listen": {"tls": False}}, {"sal": {"beta": 0}}, {"gateway": {"paths": []}},
    ):  # fmt: skip
        assert not schema.is_valid({**FULL, **wrong}), wrong


def test_check_says_what_would_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", "picker.yaml"]) == 0
    said = capsys.readouterr().out
    for words in (
        "picker.yaml is valid", "SAL, FailOpen", "every 100 ms, stale after 1 s", "1 from endpoints.yaml",
        "127.0.0.1:8001, load port 9401",
    ):  # fmt: skip
        assert words in said
    assert "warning" not in said


def test_check_warns_of_an_empty_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "endpoints.yaml").write_text("endpoints: []\n")
    assert main(["check", "--config", "picker.yaml"]) == 0
    said = capsys.readouterr().out
    assert "0 from endpoints.yaml" in said
    assert "warning:         no engine is listed: until one is, the picker can route no request\n" in said


@pytest.mark.parametrize(
    ("endpoints", "words"),
    [
        ("{service: {namespace: ns, name: llama, port: http}}", "Service ns/llama, port http"),
        ("{inferencePool: {namespace: ns, name: llama}}", "InferencePool ns/llama"),
    ],
)
def test_check_names_what_comes_from_kubernetes(
    folder: Path, capsys: pytest.CaptureFixture[str], endpoints: str, words: str
) -> None:
    text = SMALLEST.replace("{file: endpoints.yaml}", endpoints) + "load: {metrics: {}}\n"
    (folder / "picker.yaml").write_text(text)
    assert main(["check", "--config", "picker.yaml"]) == 0
    said = capsys.readouterr().out
    assert words in said
    assert "stock vLLM metrics" in said


def test_mistakes_are_one_line_and_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "bootstrap", "run"):
        assert (
            refused([command, "--config", "none.yaml"], capsys)
            == "halffull-extproc: none.yaml: No such file or directory"
        )
    (folder / "picker.yaml").write_text(SMALLEST + "\nmore: 1\n")
    for command in ("check", "bootstrap", "run"):
        assert refused([command, "--config", "picker.yaml"], capsys).startswith(
            "halffull-extproc: picker.yaml:5: more: unkn"
        )
    (folder / "picker.yaml").write_text(SMALLEST)
    (folder / "endpoints.yaml").write_text("endpoints: [{address: engine}]\n")
    for command in ("check", "run"):
        line = refused([command, "--config", str(folder / "picker.yaml")], capsys)
        assert line.startswith(
            f"halffull-extproc: {folder}/endpoints.yaml:1: endpoints[0].address: 'engine' is not IP:PORT"
        )
    (folder / "picker.yaml").write_text("# first\n" + SMALLEST.replace("endpoints.yaml", "gone.yaml"))
    for command in ("check", "run"):
        assert refused([command, "--config", str(folder / "picker.yaml")], capsys) == (
            f"halffull-extproc: {folder}/picker.yaml:4: endpoints.file: {folder}/gone.yaml: No such file or directory"
        )
    assert "write NAMESPACE/NAME" in refused(["check", "--config-map", "picker"], capsys)


def test_a_port_that_is_taken_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (folder / "picker.yaml").write_text(SMALLEST + f"listen: {{metrics: '127.0.0.1:{port}'}}\n")
        line = refused(["run", "--config", "picker.yaml"], capsys)
        assert line == f"halffull-extproc: listen.metrics: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize(
    "arguments",
    [[], ["check"], ["schema", "x"], ["bootstrap", "--config", "a", "--admin-port", "0"], ["fly"],
     ["run", "--config", "a", "--config-map", "b"]],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: halffull-extproc" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["bootstrap", "--help"], ["--version"]])
def test_help_helps(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "halffull-extproc" in said or said.strip()


HEAVY = {"aiohttp", "cryptography", "envoy", "google.protobuf", "grpc", "numpy", "prometheus_client", "uvloop"}


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["--help"], set()),
        (["run", "--help"], set()),
        (["schema", "picker"], set()),
        (["check", "--config", "picker.yaml"], set()),
        (["bootstrap", "--config", "picker.yaml"], set()),
        (["run", "--config", "gone.yaml"], set()),
        # A running picker: no TLS is asked for.
        (["run", "--config", "picker.yaml"], HEAVY - {"cryptography"}),
    ],
)
def test_a_command_loads_what_it_needs(folder: Path, arguments: list[str], needed: set[str]) -> None:
    """Most of what a start costs is imports."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"listen: {{metrics: '127.0.0.1:{taken.getsockname()[1]}'}}\n"  # `run` ends at once
        (folder / "picker.yaml").write_text(SMALLEST + listen)
        code = (
            "import sys; from halffull_extproc.cli import main\n"
            f"try: main({arguments!r})\n"
            "except SystemExit: pass\n"
            f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stderr.splitlines()[-1] == str(sorted(needed))


def test_the_example_in_the_help_is_a_valid_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    example = said.partition("the smallest picker.yaml, and its endpoints.yaml:\n")[2]
    picker, _, endpoints = example.partition("\n\n")
    (folder / "picker.yaml").write_text(picker.replace("\n  ", "\n").removeprefix("  "))
    (folder / "endpoints.yaml").write_text(endpoints.strip() + "\n")
    assert main(["check", "--config", "picker.yaml"]) == 0


def test_the_bootstrap_names_the_pickers_socket(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "picker.yaml").write_text(SMALLEST + "listen: {grpc: 'unix:p.sock'}\n")
    assert main(["bootstrap", "--config", "picker.yaml", "--admin-port", "1234", "--ready-port", "1235"]) == 0
    said = capsys.readouterr().out
    document = yaml.safe_load(said)
    assert document["admin"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1234}
    assert f"path: {folder}/p.sock" in said
    assert "port_value: 1235" in said


def test_the_bootstrap_refuses_a_port_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "picker.yaml").write_text(SMALLEST + "gateway: {listen: '127.0.0.1:8000'}\n")
    for ports, said in ((("8000", "9902"), "gateway.listen"), (("9901", "9901"), "--admin-port")):
        argv = ["bootstrap", "--config", "picker.yaml", "--admin-port", ports[0], "--ready-port", ports[1]]
        assert refused(argv, capsys).endswith(f"the port is {said}'s already")


def test_check_looks_for_the_certificates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for where in ("gateway", "listen"):
        (folder / "picker.yaml").write_text(SMALLEST + f"{where}: {{tls: {{certFile: no.crt, keyFile: no.key}}}}\n")
        assert "no.crt" in refused(["check", "--config", "picker.yaml"], capsys)
