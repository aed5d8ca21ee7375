"""Trains a byte-level BPE tokenizer on a run's own text.

`data/tokenizer.py` reads the file that it writes. All bytes have a token, so
that every text can be encoded, and `<s>` opens documents. No token crosses a
control character that structures a conversation (`data/chat.py`), so that a
conversation's text has the tokens of its messages.
"""

from collections.abc import Iterable
import pathlib

from kaiju_jax.data import chat
from kaiju_jax.storage import files

_OPENING = '<s>'
SMALLEST = 257  # Tokens: `<s>` and the bytes.


def train(path: pathlib.Path, texts: Iterable[str], vocab_size: int) -> None:
  """Trains a tokenizer on texts and writes its `tokenizer.json`.

  `vocab_size` is the most tokens; the texts may have fewer merges.

  Raises:
    OSError: the file cannot be written.
    ValueError: a vocabulary that cannot hold all bytes.
  """
  import tokenizers  # Its import takes a second.

  if vocab_size < SMALLEST:
    raise ValueError(
      f'vocab_size={vocab_size}: must be at least {SMALLEST}, for {_OPENING}'
      ' and the 256 bytes.'
    )
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  by_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  structure = tokenizers.Regex(f'[{chat.SOH}{chat.STX}{chat.ETX}]')
  made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
    [tokenizers.pre_tokenizers.Split(structure, 'isolated'), by_bytes]
  )
  made.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[_OPENING],
    initial_alphabet=by_bytes.alphabet(),
    show_progress=False,
  )
  made.train_from_iterator(texts, trainer)
  files.make_folder(path.parent)
  files.write_text(path, made.to_str(pretty=True))
