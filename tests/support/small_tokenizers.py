"""Small tokenizers of the kinds that models have, trained on a few lines."""

from __future__ import annotations

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

__all__ = ["byte_level", "sentencepiece"]

LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "def main() -> int:\n    return 0\n",
    "Größe und Ähnlichkeit; 東京は日本の首都です。",
    "emoji 🧿🧿 and more emoji 👩‍👩‍👧",
]


def byte_level() -> Tokenizer:
    """Return a tokenizer of the GPT-2 kind, framed by nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<é>", normalized=False)])
    return tokenizer


def sentencepiece(*, has_prefix: bool = False) -> Tokenizer:
    """Return a tokenizer of the Gemma kind, or of the Llama 2 kind with its space in front."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    trained.train_from_iterator(LINES, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [(left, right) for left, right in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    last = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)]
    )
    return tokenizer
