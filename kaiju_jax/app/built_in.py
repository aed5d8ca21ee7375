"""Publishes the built-in characters in a server's store when it starts."""

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing


def digest(
  store: conversing.Store,
  tokenizer: tokenizer_lib.Tokenizer,
  written: chat.Format,
) -> str:
  """Returns the digest of a tokenizer and a format that stored prefixes have.

  It hashes the tokenizer's file. An older store's characters have a hash of the
  tokenizer's behaviour instead, and keep it, because cached texts have it too.
  """
  found = tokenizer_lib.digest(tokenizer) + written.digest
  held = {
    version.tokenizer
    for fields in builtin.CHARACTERS
    if (version := _live(store, fields.name.lower())) is not None
  }
  if not held or found in held:
    return found
  former = tokenizer_lib.hash_use(tokenizer) + written.digest
  return former if former in held else found


def publish(
  store: conversing.Store, written: chat.Format, digest: str, length: int
) -> None:
  """Publishes the built-in characters that a model has room for.

  Args:
    store: the server's.
    written: the model's chat format.
    digest: as `digest` returns it.
    length: tokens of a prompt and its reply.
  """
  for fields in builtin.CHARACTERS:
    tokens = prompt.prefix(fields, written)
    if len(tokens) <= length // 2:
      store.publish(
        characters.BUILT_IN,
        fields,
        tokens,
        digest,
        fields.name.lower(),
        is_public=True,
      )


def _live(store: conversing.Store, name: str) -> characters.Version | None:
  try:
    return store.live(characters.BUILT_IN, name)
  except characters.Missing:
    return None
