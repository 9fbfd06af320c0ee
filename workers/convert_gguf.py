"""Turn a GGUF file into plain safetensors: ``python convert_gguf.py MODEL.gguf DIRECTORY``, a script of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

WRONG_USE = 2


def convert(source: Path, target: Path) -> None:
    """Write config, weights in bfloat16 and tokenizer of a GGUF model into a directory."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.stderr.write(f"{__doc__}\n")
        sys.exit(WRONG_USE)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
