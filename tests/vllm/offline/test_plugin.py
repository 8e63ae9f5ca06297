"""The entry point: a prompt that no KV cache could hold is refused where clients are answered, and only with us."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler
from vllm.v1.engine import input_processor

import halffull_larry
from halffull_larry import plugin
from halffull_larry.config import ConfigError

BLOCK = 16
OURS = "halffull_larry.Scheduler"


class InputProcessor:
    """Stands for vLLM's, which wants a model: what the entry point touches of it."""

    def __init__(self, vllm_config: Any, renderer: object = None, *, more: object = None) -> None:
        self.vllm_config = vllm_config
        self.given = renderer, more

    def _validate_prompt_len(self, prompt_len: int, prompt_type: str, extra: object = None) -> object:
        assert prompt_type in ("decoder", "encoder")
        if prompt_len > 2_000:
            raise ValueError("longer than the model")
        return extra


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> type[InputProcessor]:
    """A fresh one where the entry point finds vLLM's, on which it has acted already in this process."""
    fresh = type("InputProcessor", (InputProcessor,), dict(vars(InputProcessor)))
    monkeypatch.setattr(input_processor, "InputProcessor", fresh)
    monkeypatch.setattr(plugin, "_refused", lambda: SimpleNamespace(inc=lambda: None))
    return fresh


def config(scheduler: Any = OURS, *, blocks: int | None = 41, larry: Any = None, **parallel: Any) -> Any:
    """vLLM's configuration, as far as the entry point reads it; 40 blocks hold tokens."""
    parallel = {
        "data_parallel_size": 1,
        "data_parallel_size_local": 1,
        "data_parallel_external_lb": False,
        "data_parallel_hybrid_lb": False,
    } | parallel
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=BLOCK),
        parallel_config=SimpleNamespace(**parallel),
        additional_config={"larry": larry or {}},
    )


def longest_accepted(validate: Any) -> int:
    """The capacity, found by trying."""

    def accepted(prompt_len: int) -> bool:
        try:
            validate(prompt_len, "decoder")
        except ValueError:
            return False
        return True

    return max(filter(accepted, range(1, 2_050)))


def test_a_prompt_larger_than_the_cache_is_refused_and_told_the_capacity(processor: Any) -> None:
    plugin.register()
    validate = processor(config())._validate_prompt_len
    validate(640, "decoder")
    with pytest.raises(ValueError, match=r"The prompt has 641 tokens, and the KV cache of this engine holds 640"):
        validate(641, "decoder")
    with pytest.raises(ValueError, match="longer than the model"):  # vLLM's own refusal comes first
        validate(2_001, "decoder")
    validate(1_000, "encoder")  # it takes no room in the cache
    assert validate(10, "decoder", extra="passed on") == "passed on"


@pytest.mark.parametrize("scheduler", [None, "other.Scheduler", "halffull_larry_two.Scheduler", VLLMScheduler], ids=str)
def test_with_another_scheduler_nothing_changes(processor: Any, scheduler: Any) -> None:
    plugin.register()
    made = processor(config(scheduler, larry={"alpha": "nonsense"}), "renderer", more=1)
    assert made.given == ("renderer", 1)
    assert longest_accepted(made._validate_prompt_len) == 2_000


@pytest.mark.parametrize(
    "scheduler",
    [
        OURS,
        "halffull_larry.SyncScheduler",
        halffull_larry.Scheduler,
        type("Mine", (halffull_larry.SyncScheduler,), {}),
    ],
    ids=str,
)
def test_ours_is_known_by_name_class_and_subclass(processor: Any, scheduler: Any) -> None:
    plugin.register()
    assert longest_accepted(processor(config(scheduler))._validate_prompt_len) == 640


def test_registering_twice_wraps_once(processor: Any) -> None:
    plugin.register()
    once = processor._validate_prompt_len, processor.__init__
    plugin.register()
    assert (processor._validate_prompt_len, processor.__init__) == once


def test_on_an_unknown_release_it_leaves_everything_alone(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "99.1.0")
    before = processor._validate_prompt_len, processor.__init__
    plugin.register()
    assert (processor._validate_prompt_len, processor.__init__) == before


def test_bad_settings_stop_the_start_before_the_model_is_loaded(processor: Any) -> None:
    plugin.register()
    with pytest.raises(ConfigError, match=r"larry\.alpha"):
        processor(config(larry={"alpha": -1}))


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"data_parallel_size": 2}, 40),  # this process feeds both: their blocks are summed, two null blocks too
        ({"data_parallel_size": 2, "data_parallel_external_lb": True}, 81),  # a process for each engine
        (
            {"data_parallel_size": 8, "data_parallel_size_local": 2, "data_parallel_hybrid_lb": True},
            40,  # a process for those of its node
        ),
    ],
    ids=["internal", "external", "hybrid"],
)
def test_capacity_is_that_of_one_engine(processor: Any, parallel: dict[str, Any], expected: int) -> None:
    plugin.register()
    made = processor(config(blocks=82, **parallel))
    assert longest_accepted(made._validate_prompt_len) == expected * BLOCK


def test_a_release_that_says_the_capacity_is_believed(processor: Any) -> None:
    plugin.register()
    settings = config()
    settings.cache_config.kv_cache_size_tokens = 777
    assert longest_accepted(processor(settings)._validate_prompt_len) == 777


@pytest.mark.parametrize("blocks", [None, 0])
def test_as_long_as_the_capacity_is_unknown_vllm_decides(processor: Any, blocks: int | None) -> None:
    plugin.register()
    assert longest_accepted(processor(config(blocks=blocks))._validate_prompt_len) == 2_000


def test_vllm_still_has_what_we_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every release of the tested range."""
    monkeypatch.undo()
    parameters = list(inspect.signature(input_processor.InputProcessor._validate_prompt_len).parameters)
    assert parameters[:3] == ["self", "prompt_len", "prompt_type"]
    assert next(iter(inspect.signature(input_processor.InputProcessor.__init__).parameters)) == "self"
