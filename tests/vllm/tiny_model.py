"""A Llama of two layers with random weights, a tokenizer and LoRA adapters, built offline in a second.

With `--load-format dummy` vLLM reads no weights and answers noise, of exactly the length asked for.
"""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file  # type: ignore[import-not-found]  # in vLLM's environment only
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]  # likewise

HIDDEN = 64
LAYERS = 2
HEADS = 2  # heads of 32: the smallest that the CPU attention of vLLM knows
VOCABULARY = 512
MAX_POSITIONS = 65536

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
# The prompt that a chat request becomes: every message's content between markers, then the assistant's turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "vocab_size": VOCABULARY,
}


def build(folder: Path) -> Path:
    """Write config, generation config and tokenizer files into `folder` (created) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "config.json", LLAMA)
    _write(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITIONS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return folder


def lora(folder: Path, *, rank: int = 8) -> Path:
    """Write a random LoRA adapter for the model in PEFT's format into `folder` (created) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(folder.name.encode()).digest()[:8], "big"))
    tensors = {}
    # vLLM's dummy weights, norms included, lie within ±0.001: an adapter of ordinary size would change no answer.
    scale = 10
    for layer in range(LAYERS):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, scale, (rank, HIDDEN)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = rng.normal(0, scale, (HIDDEN, rank)).astype(np.float32)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    _write(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": rank,
            "lora_alpha": 2 * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["q_proj", "v_proj"],
            "base_model_name_or_path": "tiny",
        },
    )
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    size = tokenizer.get_vocab_size()
    if size != VOCABULARY:
        raise RuntimeError(f"the corpus gives {size} tokens, the model has {VOCABULARY}")
    return tokenizer


def _corpus() -> list[str]:
    """Made-up sentences: enough different pairs for the whole vocabulary, the same at every run."""
    rng = random.Random(0)
    syllables = [c + v for c in "bcdfghklmnprst" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=12)) for _ in range(400)]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
