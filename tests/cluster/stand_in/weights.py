"""Write the tiny model of tests/vllm with random weights into a folder, while an image is built."""

import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]  # in vLLM's image only
import transformers  # type: ignore[import-not-found]  # likewise
from tiny_model import LLAMA, build  # type: ignore[import-not-found]  # lies beside it there

folder = build(Path(sys.argv[1]))
torch.manual_seed(0)
transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(folder)
for file in folder.iterdir():
    file.chmod(0o644)  # weights are written for their owner alone, and engines run as another user
build(folder)  # its config again: that of the library says more than vLLM needs
