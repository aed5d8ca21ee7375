"""Corpora of bytes, and tokenizers that train in a moment."""

from kaiju_jax.data import bpe
from kaiju_jax.data import chat
from kaiju_jax.data import documents
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib

BYTES = tokenizer_lib.Bytes()
CHATML = ('<|im_start|>', '<|im_end|>')


def corpus(*texts, names=None) -> text.Corpus:
  """Returns a corpus of bytes; documents are numbered if they have no names."""
  names = names or map(str, range(len(texts)))
  return text.corpus(
    [documents.Document(*one) for one in zip(names, zip(texts))], BYTES
  )


def train_tokenizer(path, text='hello there.') -> tokenizer_lib.HuggingFace:
  """Trains a BPE of 300 tokens on chats that say the text."""
  bpe.train(path, [chat.text_of([('user', text)] * 9)] * 9, 300)
  return tokenizer_lib.load(str(path))


def train_chatml(path, special=CHATML, plain=()) -> tokenizer_lib.HuggingFace:
  """Trains one that has ChatML's tokens, marked as special ones or not."""
  import tokenizers

  train_tokenizer(path)
  made = tokenizers.Tokenizer.from_file(str(path))
  made.add_special_tokens(list(special))
  made.add_tokens(list(plain))
  made.save(str(path))
  return tokenizer_lib.load(str(path))
