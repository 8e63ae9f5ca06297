"""vLLM's scheduler classes without a model: they need vLLM itself, so nothing here is collected where it is not."""

import importlib.util
import os
import warnings

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

if not collect_ignore_glob:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what vLLM and torch warn of when they are imported is not ours to fix
        import vllm.v1.core.sched.async_scheduler
        import vllm.v1.structured_output  # noqa: F401
