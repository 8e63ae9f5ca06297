"""Start the cluster of the tests by hand and keep it: `python -m tests.cluster.up [NAME] [--no-vllm]`.

Run again, it loads the images that changed, and upgrades the chart. To run tests against it: `HALFFULL_CLUSTER=NAME
pytest tests/cluster -m cluster`. To end it: `CLUSTER_NAME=NAME hack/cluster/cluster down`.
"""

import argparse
import time

from tests.cluster import images, node


def main() -> None:
    """Bring it up; what was done goes to stdout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", default="dev")
    parser.add_argument("--no-vllm", action="store_true", help="without vLLM's image, the largest by far")
    chosen = parser.parse_args()
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)  # noqa: T201  a command line prints

    cluster = node.up(chosen.name)
    say(f"cluster {chosen.name} is up")
    cluster.load(images.envoy())
    cluster.load_images(*images.SMALL)
    say("images are loaded")
    cluster.install()
    say("the operator is ready")
    if not chosen.no_vllm:
        cluster.load_images(images.VLLM)
        say("vLLM's image is loaded")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={images.HOME / 'bin'}:$PATH")  # noqa: T201
    print(f"HALFFULL_CLUSTER={chosen.name} pytest tests/cluster -m cluster")  # noqa: T201


if __name__ == "__main__":
    main()
