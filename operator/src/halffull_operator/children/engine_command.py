"""The engine's command line and environment. Pure."""

import json
from collections.abc import Iterator
from typing import Any, Final

from halffull_operator.children.manifest import Family, Manifest, env
from halffull_operator.engine_settings import HTTP_PORT, LOAD_PORT, EngineSettings, drain_seconds
from halffull_operator.spec import Larry, LLMServing, SpecError
from halffull_operator.spec_model import served_names, source_of
from halffull_operator.spec_types import written
from halffull_operator.vllm_args import asynchronous, value_of

CACHE: Final = "/cache"
HOME: Final = "/home/halffull"
MODEL: Final = "/mnt/model"
PLUGIN: Final = "/opt/halffull/larry"
KEEP_ALIVE: Final = 30
"""s that vLLM keeps an idle connection: well above Envoy's 4 s, or a request meets a connection being closed."""

_ENVIRONMENT: Final = (
    ("HOME", HOME),
    ("USER", "halffull"),  # no entry in /etc/passwd: getpass and torch ask these two first
    ("LOGNAME", "halffull"),
    ("XDG_CACHE_HOME", f"{HOME}/.cache"),
    ("XDG_CONFIG_HOME", f"{HOME}/.config"),
    ("TRITON_CACHE_DIR", f"{HOME}/.triton"),
    ("TORCHINDUCTOR_CACHE_DIR", f"{HOME}/.inductor"),
    ("NUMBA_CACHE_DIR", f"{HOME}/.numba"),
    ("HF_HOME", f"{CACHE}/huggingface"),
    ("VLLM_CACHE_ROOT", f"{CACHE}/vllm"),
    ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", str(KEEP_ALIVE)),
)


def has_plugin(serving: LLMServing) -> bool:
    """Whether engines have LARRY's plugin, and with it a load report."""
    return serving.spec.scheduler.policy != "Stock"


def load_ports(serving: LLMServing) -> range:
    """Ports of the load reports, one for each data-parallel rank; none without the plugin."""
    return range(LOAD_PORT, LOAD_PORT + (serving.spec.engine.parallelism.data if has_plugin(serving) else 0))


def arguments(family: Family, settings: EngineSettings) -> list[str]:
    """Arguments of `vllm serve`: the operator's, then a person's."""
    serving = family.serving
    engine = serving.spec.engine
    source = source_of(serving.spec.model)
    model = f"{MODEL}/{source.path}".rstrip("/") if source.scheme == "pvc" else source.place
    sizes = engine.parallelism
    args = [
        model,
        "--served-model-name",
        *served_names(serving.spec.model, serving_name=serving.name),
        f"--host={family.config.listen}",
        f"--port={HTTP_PORT}",
        f"--tensor-parallel-size={sizes.tensor}",
        f"--pipeline-parallel-size={sizes.pipeline}",
        f"--data-parallel-size={sizes.data}",
        f"--shutdown-timeout={drain_seconds(serving)}",
    ]
    if source.revision is not None:
        args.append(f"--revision={source.revision}")
    if source.scheme == "s3" and value_of(settings.args, "load-format") is None:
        args.append("--load-format=runai_streamer")
    if engine.max_model_len is not None:
        args.append(f"--max-model-len={engine.max_model_len}")
    if has_plugin(serving):
        args += _plugin_arguments(family, settings)
    return [*args, *settings.args]


def _plugin_arguments(family: Family, settings: EngineSettings) -> Iterator[str]:
    scheduler, pipeline = family.serving.spec.scheduler, family.serving.spec.engine.parallelism.pipeline
    is_async = asynchronous(settings.args, cpu=settings.on_cpu, pipeline=pipeline)
    larry: dict[str, Any] = {"policy": scheduler.policy}
    if scheduler.policy == "LARRY":
        larry["alpha"] = (scheduler.larry or Larry()).alpha
    larry |= {"load_port": LOAD_PORT, "load_host": family.config.listen}
    yield f"--scheduler-cls=halffull_larry.{'Scheduler' if is_async else 'SyncScheduler'}"
    yield f"--additional-config={json.dumps({'larry': larry}, separators=(',', ':'))}"
    if not is_async and value_of(settings.args, "no-async-scheduling") is None:
        yield "--no-async-scheduling"


def environment(family: Family, settings: EngineSettings) -> list[Manifest]:
    """Ours, then the configuration's and the LLMServing's, which replace ours of the same name.

    Raises:
        SpecError: PYTHONPATH, to which the plugin is added, comes from somewhere else.
    """
    variables = {variable["name"]: variable for variable in env((*_ENVIRONMENT, *_proxy(family)))}
    given = {variable.name: written(variable) for variable in settings.env}
    variables |= given
    if has_plugin(family.serving):
        theirs = given.get("PYTHONPATH")
        if theirs is not None and "valueFrom" in theirs:
            raise SpecError("spec.engine.env", "PYTHONPATH needs value: the operator puts the plugin in front of it")
        path = f"{PLUGIN}:{theirs['value']}" if theirs is not None and theirs.get("value") else PLUGIN
        variables["PYTHONPATH"] = {"name": "PYTHONPATH", "value": path}
    return list(variables.values())


def _proxy(family: Family) -> Iterator[tuple[str, str]]:
    proxy = family.config.proxy
    for name, value in (
        ("HTTP_PROXY", proxy.http_proxy),
        ("HTTPS_PROXY", proxy.https_proxy),
        ("NO_PROXY", proxy.no_proxy),
    ):
        if value:
            yield name, value
            yield name.lower(), value
