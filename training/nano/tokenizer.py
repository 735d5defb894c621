"""Byte-level BPE whose frequent pieces are whole tokens: numbers of up to three digits, tool names, JSON boilerplate.

What must be copied is one token, and an order reads as about fifty. Any text is restored exactly.
It knows nothing about models or training.
Called by `training.nano.build` (to make it) and `training.nano.episodes` (to encode conversations).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>")
FALLBACK_MERGES = 320
PREFIXES = ("credit_card_", "gift_card_", "paypal_", " -> ", " / ")
_KEY = r'"[a-z][a-z_]*[0-9]?": '
_CONSTANT = r'(?:null|true|false|\[\]|"USA"|"payment"|"refund"|"(?:credit_card|gift_card|paypal)"(?=, "id"))'
_GLUE = rf'\n?(?:": |["\]}}]*(?:, )?)[\[{{]*(?:{_KEY}(?:{_CONSTANT}[\]}}]*|[\[{{]*)(?:, )?)+"?'
_PIECES = (
    r"(?:system|user|assistant|tool)\n",
    r"\([a-z0-9_]+(?:, [a-z0-9_]+)*\)",
    r"[0-9]{1,3}",
    r"#[A-Z]",
    r"@[a-z]+\.[a-z]+",
    r"\.[a-z]+(?=[0-9])",
    r"_[a-z]+_?",
    r" (?![a-z]+[._][a-z]+_?[0-9])(?!(?:OPTIONS)\b)[a-z]+(?: (?=[A-Z0-9#]|(?:OPTIONS)\b|[a-z]+\.[a-z]+[0-9]))?",
    r" I\b",
    r"[A-Za-z]+(?: (?=[0-9#]))?",
    r"'[a-z]+",
    r'["\]}]+\n?(?:, )?[\[{]*"?',
    r"[.,;:?!]+ ",
    r" ",
    r"\n+",
    r"[^\sA-Za-z0-9]+",
    r"\s+",
)
_OPTIONS = re.compile(r'"options": \{([^}]*)\}')
_VALUE = re.compile(r': "([a-z]+)"')
_PHRASE = re.compile(r'"(?:[0-9]+ )?([A-Z][A-Za-z-]*(?: [A-Z][A-Za-z-]*)+)')


def build_tokenizer(
    texts: Sequence[str], tool_names: Sequence[str], size: int, template: str
) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `size` tokens for such texts (rendered conversations without the chat markers)."""
    phrases = [phrase for phrase, count in Counter(_phrases(texts)).items() if count >= 8]
    options = sorted({value for text in texts for found in _OPTIONS.findall(text) for value in _VALUE.findall(found)})
    splitter = _splitter(sorted({*tool_names, *PREFIXES, *phrases}, key=len, reverse=True), options)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = splitter
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=len(alphabet) + FALLBACK_MERGES, initial_alphabet=alphabet, show_progress=False),
    )
    base = json.loads(trained.to_str())["model"]
    vocab = _vocabulary(base["vocab"], texts, splitter, size)
    made = Tokenizer(models.BPE(vocab, [tuple(pair) for pair in base["merges"]], ignore_merges=True))
    made.pre_tokenizer = splitter
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = template
    return fast


def read_template() -> str:
    """The chat template's text."""
    return (Path(__file__).parent / "chat_template.jinja").read_text().rstrip("\n")


def _splitter(whole: Sequence[str], options: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts text at `whole` words, JSON between values, then pieces; `options` never take the space before them."""
    words = "|".join(re.escape(word).replace("\\ ", " ") for word in whole)
    pattern = "|".join((rf"(?<=[0-9]) (?:{words})", words, _GLUE, *_PIECES))
    pattern = pattern.replace("OPTIONS", "|".join(options) or "$")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _vocabulary(
    base: dict[str, int], texts: Sequence[str], splitter: pre_tokenizers.PreTokenizer, size: int
) -> dict[str, int]:
    room = size - len(SPECIAL) - len(TAGS)
    tokens = dict.fromkeys([*sorted(base, key=lambda token: base[token]), *_numbers()])
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    for piece, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if len(tokens) >= room:
            break
        tokens.setdefault(piece)
    for filler in range(room - len(tokens)):
        tokens[f"<|unused{filler}|>"] = None
    return {token: index for index, token in enumerate(tokens)}


def _numbers() -> Iterator[str]:
    for digits in (1, 2, 3):
        yield from (f"{number:0{digits}d}" for number in range(10**digits))


def _phrases(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _PHRASE.findall(text)
