"""Decides who shares the cached keys and values of a character's prefix.

A *tree* of the cache holds the texts that begin with the prefix of one version
of a character, under its own cache salt:

    DIGEST CHARACTER          shared: all who may talk to the character
    DIGEST CHARACTER OWNER    private: the character's owner alone

Others can only begin with a version while it is public and live, so they use
the shared tree, and their sessions stay in it whatever becomes of the
character. The owner shares it while the version is live and public, and
otherwise has the private tree, so that cached tokens tell others nothing of a
text that they may not read.

Characters share no tree, even with equal texts: so whoever copies a character,
and removes or hides the copy, touches nobody else's cache. The digest keeps
versions apart, and an edit that leaves the prefix as it is keeps its tree. All
of this is our guess. All functions may raise `characters.Unavailable`.
"""

from typing import NamedTuple
from typing import Self

from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing


class Tree(NamedTuple):
  """One tree of the cache."""

  digest: str  # Of the version's prefix.
  character: str  # The character's id.
  # The character's owner, who alone uses it; '' for a shared tree.
  owner: str = ''

  @property
  def salt(self) -> str:
    """Its cache salt."""
    return ' '.join(self if self.owner else self[:2])

  @property
  def shared(self) -> Self:
    """The shared tree of the same version."""
    return self._replace(owner='')

  @classmethod
  def parse(cls, salt: str) -> Self | None:
    """Returns the tree of a cache salt; None for a salt of no tree."""
    # Digests and ids contain no spaces; owners may.
    parts = salt.split(' ', 2)
    return cls(*parts) if len(parts) > 1 and all(parts) else None


def find_tree(
  store: conversing.Store, asking: str, version: characters.Version
) -> Tree:
  """Returns the tree of an owner's requests for a version; or `Missing`."""
  held = store.find_character(version.character)
  tree = Tree(version.digest, held.id)
  if held.owner not in (asking, characters.BUILT_IN):
    return tree  # They began with it while everybody could.
  is_shared = held.owner == characters.BUILT_IN or (
    held.is_public and _is_live(store, held, tree)
  )
  return tree if is_shared else tree._replace(owner=asking)


def is_public(store: conversing.Store, tree: Tree) -> bool:
  """Returns whether a tree holds a text that is everybody's now.

  It is that of the live version of a public character, or any version of a
  built-in one that somebody uses.
  """
  held = _find(store, tree)
  if tree.owner or held is None:
    return False
  if held.owner == characters.BUILT_IN:
    return is_read(store, tree)
  return can_begin(store, tree)


def is_read(store: conversing.Store, tree: Tree) -> bool:
  """Returns whether any request may still come for a tree."""
  return _find(store, tree) is not None and (
    can_begin(store, tree)
    or store.has_sessions(
      tree.character, tree.digest, of_owner=bool(tree.owner)
    )
  )


def can_begin(store: conversing.Store, tree: Tree) -> bool:
  """Returns whether new conversations may stand in a tree.

  The owner may always begin in the private tree of a version that was live
  once, because a rollback makes it live again.
  """
  held = _find(store, tree)
  if held is None:
    return False
  if tree.owner:
    return held.live > 0
  is_everybodys = held.is_public or held.owner == characters.BUILT_IN
  return is_everybodys and _is_live(store, held, tree)


def _find(store: conversing.Store, tree: Tree) -> characters.Character | None:
  """Returns a tree's character; None where it never was, or is another's."""
  try:
    held = store.find_character(tree.character)
  except characters.Missing:
    return None
  return held if tree.owner in ('', held.owner) else None


def _is_live(
  store: conversing.Store, held: characters.Character, tree: Tree
) -> bool:
  """Returns whether the live version has the prefix of a tree."""
  if not held.live:
    return False
  try:
    return store.version(held.id, held.live).digest == tree.digest
  except characters.Missing:  # It was removed since it was read.
    return False
