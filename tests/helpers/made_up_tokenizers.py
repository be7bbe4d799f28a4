"""Small tokenizers of Hugging Face's kinds, saved as a model's folder holds them; they know letters, and few words."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ("a", "photo", "of", "the", "cat", "dog", "painting", "histology", "собака", "猫")
LETTERS = string.ascii_letters + string.digits + string.punctuation + "абвгдежзийклмнопрстуфхцчшщъыьэюя犬"


def save_word_piece(folder: Path) -> None:
    """BERT's kind: `[CLS] words [SEP] [PAD] ...`."""
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
    """SentencePiece's kind; `special` are the first tokens by number, `</s>` and `<unk>` among them.

    The first SigLIP: `("<pad>", "</s>", "<unk>"), "$A </s>", "</s>"`; SigLIP 2: the same with the padding `<pad>`;
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
