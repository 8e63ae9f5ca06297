"""`--config` and `--config-map`: where the configuration is, and what it says."""

import argparse
from pathlib import Path
from typing import Final

from halffull_extproc.discovery.file import MAX_ENDPOINTS_BYTES, FileError, parse_endpoints, read_text
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.settings import MAX_BYTES, Settings, SettingsError, load_settings, mistake
from halffull_extproc.wiring import ConfigSource, ranks_polled

CONFIG_MAP_WITHIN: Final = 60.0  # s that the ConfigMap may take to appear


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two flags, of which one is needed."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE", help="the configuration, picker.yaml")
    source.add_argument(
        "--config-map",
        metavar="[NAMESPACE/]NAME",
        help="a ConfigMap with the key picker.yaml; the namespace defaults to the pod's",
    )


def load(options: argparse.Namespace) -> tuple[Settings, ConfigSource, str]:
    """The settings, where they are from, and their text.

    Raises:
        InputError: they cannot be read, or are not valid.
    """
    source = _source(options)
    text = _text(source)
    return load_settings(text, source=str(source)), source, text


def endpoints(settings: Settings, source: ConfigSource, text: str) -> list[Endpoint] | None:
    """What endpoints.yaml says now; None when the endpoints come from Kubernetes.

    Raises:
        InputError: it is not there, with the line of picker.yaml that names it, or not valid.
    """
    if not isinstance(settings.endpoints.file, str):
        return None
    path = source.beside(settings.endpoints.file)
    try:
        listed = read_text(path, max_bytes=MAX_ENDPOINTS_BYTES)
    except FileError as error:
        raise mistake(text, source=str(source), key=("endpoints", "file"), problem=str(error)) from error
    return parse_endpoints(listed, source=str(path), load_port=settings.load_port, ranks=ranks_polled(settings))


def _source(options: argparse.Namespace) -> ConfigSource:
    if options.config is not None:
        return ConfigSource(name=options.config)
    # Imported here: its HTTP client is a good part of a second, and a file needs none.
    from halffull_extproc.discovery.kube import own_namespace  # noqa: PLC0415

    namespace, _, name = options.config_map.rpartition("/")
    namespace = namespace or own_namespace() or ""
    if not namespace or not name:
        raise SettingsError(f"--config-map {options.config_map}: write NAMESPACE/NAME, this is not a pod with one")
    return ConfigSource(name=name, namespace=namespace)


def _text(source: ConfigSource) -> str:
    if not source.namespace:
        return read_text(Path(source.name), max_bytes=MAX_BYTES)
    # As above.
    import uvloop  # noqa: PLC0415

    from halffull_extproc.discovery.config_map import first_text  # noqa: PLC0415
    from halffull_extproc.discovery.kube import connect  # noqa: PLC0415

    async def fetch() -> str:
        async with connect() as api:
            return await first_text(api, namespace=source.namespace, name=source.name, within=CONFIG_MAP_WITHIN)

    return uvloop.run(fetch())
