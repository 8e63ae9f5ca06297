#!/usr/bin/env python3
"""Runs the field's load generator, aiperf, against a gateway.

    .venv/bin/python hack/aiperf.py                        # starts engines, picker and Envoy for it
    .venv/bin/python hack/aiperf.py http://HOST:8000 MODEL # a gateway of one's own

aiperf is fetched by uv into a cache, not into .venv (it brings 139 packages). It wants a tokenizer and would download
one: a small one is made on the spot, so that this also runs where no model hub is reached.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from halffull_lab.stack import EngineOptions, Stack

AIPERF = "aiperf==0.13.0"
_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.train_from_iterator(["half empty half full"] * 50, trainers.BpeTrainer(
    vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
).save_pretrained(sys.argv[1])
"""


async def _uv(*arguments: str, cwd: Path) -> int:
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv is None:
        raise SystemExit("uv is not installed (`make test` brings it)")
    process = await asyncio.create_subprocess_exec(
        *(uv, "run", "--no-project", "--isolated", "--with", AIPERF, *arguments),
        cwd=cwd,
    )
    return await process.wait()


async def run(url: str, model: str) -> int:
    """Send 60 streamed completions at 6 requests/s; aiperf's exit code."""
    with tempfile.TemporaryDirectory(prefix="halffull-aiperf-") as name:
        folder = Path(name)
        if code := await _uv("python", "-c", _TOKENIZER, str(folder / "tokenizer"), cwd=folder):
            return code
        return await _uv(
            *("aiperf", "profile", "--url", url, "--model", model, "--tokenizer", str(folder / "tokenizer")),
            *("--endpoint-type", "completions", "--streaming", "--request-rate", "6", "--request-count", "60"),
            *(
                "--synthetic-input-tokens-mean",
                "500",
                "--output-tokens-mean",
                "50",
                "--extra-inputs",
                "ignore_eos:true",
            ),
            *("--use-server-token-count", "--ui", "none"),
            cwd=folder,
        )


async def main() -> int:
    """Against the given gateway, or one of our own."""
    if len(sys.argv) == 3:
        return await run(sys.argv[1], sys.argv[2])
    async with Stack(engines=2, options=EngineOptions(speed=4)) as stack:
        code = await run(stack.gateway, "emulated")
        picks = (await stack.status())["pool"]["picks"]
        sys.stdout.write(f"picks: {picks:.0f}\n")
        return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
