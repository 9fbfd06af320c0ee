"""Train the simulated engine's tokenizer: ``python -m workers.train_sim_tokenizer [SAMPLES]`` writes its file.

The text is the project's own (extractors and sample events), so the file carries no one else's rights. It is
a byte-level BPE like those of real models: any text has ids, and ids have the lengths that a real tokenizer gives.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workers.extractor_files import SHIPPED, load_extractors

OUTPUT = Path(__file__).with_name("sim_tokenizer.json")
SAMPLES = Path(__file__).parents[1] / "producers" / "samples"
VOCABULARY = 4096
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LABEL_WEIGHT = 200
"""How often label words are repeated, so that each becomes one token whatever else the text holds."""


def corpus(samples: Path = SAMPLES) -> Iterator[str]:
    """Yield the training text: extractors, their label words, and every string of the sample events."""
    for path in sorted(SHIPPED.glob("*.toml")):
        yield path.read_text(encoding="utf-8")
    for file in load_extractors():
        template = file.template
        for _ in range(LABEL_WEIGHT):
            yield "".join(word for head in template.heads for word in head.labels.values())
        for example in template.examples:
            yield example.text
            yield "".join(template.answer(example.answer))
    for path in sorted(samples.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line) if line.strip() else {}
            yield from (value for value in event.values() if isinstance(value, str))


def train(text: Iterator[str]) -> Tokenizer:
    """Train on the given text; the same text always gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


if __name__ == "__main__":
    trained = train(corpus(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES))
    trained.save(str(OUTPUT))
    sys.stderr.write(f"{OUTPUT}: {trained.get_vocab_size()} tokens\n")
