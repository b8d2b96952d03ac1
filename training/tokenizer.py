"""The talker's byte-level BPE: the prompt template in few tokens, everything else letter by letter.

    python -m training.tokenizer --out TOKENIZER

A model of this size learns English spelling from single letters best, because every word shares
them; the template is the same in every request, so each of its lines becomes one token and costs
one row.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from hocket.text.tokenizer import TEMPLATE_SPLIT

#: Special tokens; their ids follow those of the vocabulary.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|user_slot|>",
    "<|gen_slot|>",
)
#: The prompt of a MOSS-TTS-Local model without the user's words (sources: MOSS 1.7).
FIELDS = ("Instruction", "Tokens", "Quality", "Sound Event", "Ambient Sound", "Language", "Text")
TEMPLATE = (
    "user\n",
    "assistant\n",
    "<user_inst>\n- Reference(s):\n",
    "\n</user_inst>",
    "None",
    "English",
    *(f"- {name}:\n" for name in FIELDS),
    *(f"- {name}:\nNone\n" for name in FIELDS[:-1]),
    "- Language:\nEnglish\n",
)


def train_tokenizer() -> Tokenizer:
    """256 bytes and the merges of the template, then `SPECIAL_TOKENS`."""
    tokenizer = Tokenizer(BPE())
    pieces = Split(Regex(TEMPLATE_SPLIT), "isolated")
    tokenizer.pre_tokenizer = Sequence([pieces, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=2048,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(TEMPLATE, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids that the talker's `config.json` names."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = {token: vocabulary[token] for token in SPECIAL_TOKENS}
    return {
        "pad_token_id": ids["<|endoftext|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "audio_user_slot_token_id": ids["<|user_slot|>"],
        "audio_assistant_slot_token_id": ids["<|gen_slot|>"],
        "audio_assistant_gen_slot_token_id": ids["<|gen_slot|>"],
    }


def write_tokenizer(out: Path) -> dict[str, Any]:
    """Write `out`/tokenizer.json; returns `vocab_size` and the special ids, as `config.json` has
    them.
    """
    tokenizer = train_tokenizer()
    out.mkdir(parents=True, exist_ok=True)
    definition = json.loads(tokenizer.to_str())
    (out / "tokenizer.json").write_text(
        json.dumps(definition, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return {"vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)} | special_ids(tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    print(write_tokenizer(parser.parse_args().out))


if __name__ == "__main__":
    main()
