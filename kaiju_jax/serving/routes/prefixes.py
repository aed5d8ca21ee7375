"""Lists the prefixes that everybody's requests share."""

from collections.abc import Iterator
import contextlib

from kaiju_jax.serving.routing import warming
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sharing

# Characters of one query, and of all; our guess.
_PAGE, _MOST = 1000, 100_000


def list_public(
  store: characters.Store, tokenizer: str
) -> list[warming.Prefix]:
  """Returns the live prefixes of public and built-in characters.

  Args:
    store: blocks, so that an event loop calls this in a thread.
    tokenizer: digest of the model's; prefixes of another one are left out.

  Raises:
    characters.Unavailable: the store cannot be reached.
  """
  found = []
  for one in _list(store):
    # It may have been removed, or made private, since it was listed.
    with contextlib.suppress(characters.Missing):
      version = store.live(characters.BUILT_IN, one.id)
      tree = sharing.find_tree(store, characters.BUILT_IN, version)
      # It may have been hidden since.
      is_everybodys = sharing.is_public(store, tree)
      if is_everybodys and version.tokenizer == tokenizer:
        found.append(warming.Prefix(tree.salt, version.tokens))
  return found


def _list(store: characters.Store) -> Iterator[characters.Character]:
  """Yields the characters that nobody in particular sees."""
  after, count = '', 0
  while True:
    page = store.characters(characters.BUILT_IN, _PAGE, after)
    yield from page
    count += len(page)
    if len(page) < _PAGE or count >= _MOST:
      return
    after = characters.cursor(page[-1])
