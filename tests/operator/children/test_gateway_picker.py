"""The loop that keeps the picker running, with programs that play the picker."""

import signal
import subprocess
from pathlib import Path

from halffull_operator.children.gateway_picker import kept_running

PICKER = """
echo started >>"$0.log"
case $(wc -l <"$0.log") in
  {ends}) exit 3 ;;
esac
trap 'echo asked >>"$0.log"; exit 7' TERM
echo up
while :; do sleep 0.01; done
"""


def loop(folder: Path, *, ends: str, enough: int) -> "subprocess.Popen[str]":
    """A picker that ends with 3 in its starts of these numbers, else runs and says so."""
    command = ["/bin/bash", "-c", PICKER.format(ends=ends), str(folder / "picker")]
    whole = kept_running(command, mark=str(folder / "mark"), enough=enough)
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> list[str]:
    return (folder / "picker.log").read_text().split()


def test_one_that_cannot_start_ends_its_container(tmp_path: Path) -> None:
    with loop(tmp_path, ends="*", enough=1000) as process:
        assert process.wait(timeout=60) == 3
    assert lines(tmp_path) == ["started"]


def test_one_that_has_served_is_started_again_as_often_as_it_ends(tmp_path: Path) -> None:
    with loop(tmp_path, ends="1|2", enough=0) as process:
        _stop_once_up(process)
        assert process.returncode == 7, "what the picker says at its end is the container's"
        assert process.stderr is not None
        assert process.stderr.read().count("started again") == 2
    assert lines(tmp_path) == ["started"] * 3 + ["asked"]


def test_a_new_container_in_the_same_pod_knows_that_one_has_served(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    with loop(tmp_path, ends="1|2|3", enough=1000) as process:
        _stop_once_up(process)
    assert lines(tmp_path).count("started") == 4


def _stop_once_up(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
