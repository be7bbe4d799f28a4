"""Small Hugging Face tokenizers, saved as in a model's folder. Their vocabulary has letters and a few words.

With `save_word_piece` and `save_unigram`, a word has the same tokens everywhere. With `save_gemma` and
`save_byte_level`, its tokens differ between the start and the inside of a text.
"""

import string
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ("a", "photo", "of", "the", "cat", "dog", "painting", "histology", "собака", "猫")
LETTERS = string.ascii_letters + string.digits + string.punctuation + "абвгдежзийклмнопрстуфхцчшщъыьэюя犬"


def save_word_piece(folder: Path) -> None:
    """Save a tokenizer like BERT's: `[CLS] words [SEP] [PAD] ...`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_unigram(folder: Path, special: tuple[str, ...], template: str, padding: str) -> None:
    """Save a SentencePiece tokenizer. `special` lists the first tokens, including `</s>` and `<unk>`.

    The first SigLIP: `("<pad>", "</s>", "<unk>"), "$A </s>", "</s>"`; mT5: the same with the padding `<pad>`;
    XLM-R: `("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>", "<pad>"`; NLLB: `"eng_Latn $A </s>"`.
    """
    words = ["▁", *(f"▁{word}" for word in WORDS)]
    pieces = [(piece, 0.0) for piece in special]
    pieces += [(piece, -2.0) for piece in words]
    pieces += [(letter, -5.0) for letter in LETTERS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>"), byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    numbered = [(token, special.index(token)) for token in template.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=numbered)
    names = {"pad_token": padding, "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_gemma(folder: Path) -> None:
    """Save a tokenizer like Gemma's (SigLIP 2): it merges characters, and the first word lacks `▁`, a space."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = _merges(WORDS, "▁")
    vocabulary = _numbered([*special, "▁", *LETTERS, *"".join(WORDS)], merges)
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_byte_level(folder: Path) -> None:
    """Save a tokenizer like RoBERTa's: it merges bytes, and the first word lacks `Ġ`, a space."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = _merges(["".join(part for part, _ in as_bytes.pre_tokenize_str(word)) for word in WORDS], "Ġ")
    vocabulary = _numbered([*special, *sorted(as_bytes.alphabet())], merges)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = as_bytes
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def _merges(words: Sequence[str], space: str) -> list[tuple[str, str]]:
    """List the merges that build each word letter by letter, and then each word after a space."""
    letters = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    return list(dict.fromkeys([*letters, *((space, word) for word in words)]))


def _numbered(first: Sequence[str], merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    pieces = dict.fromkeys([*first, *("".join(pair) for pair in merges)])
    return {piece: number for number, piece in enumerate(pieces)}
