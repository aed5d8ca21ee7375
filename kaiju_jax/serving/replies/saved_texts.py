"""Decides which texts of the cache may lie on the disk, as the store is now.

    texts = SavedTexts(store, tokens, is_private=False)
    texts.may_be_kept(group)   at once, from the group's name alone
    texts.is_kept(group)       asks the store

Without `is_private` these are the prefixes that everybody may talk to: of live
versions of public characters, and of built-in ones. With it they are also the
conversations of sessions that exist, the prefixes that these stand behind, and
those of private characters, all of owners who still have access.
"""

from kaiju_jax.decoding.pages import groups
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sharing


class SavedTexts:
  """The rules of one server.

  Args:
    store: of characters and sessions.
    tokens: of the owners that may ask, beside this machine's user.
    is_private: whether conversations and private characters are saved.
  """

  def __init__(
    self,
    store: conversing.Store,
    tokens: auth.Tokens,
    is_private: bool = False,
  ):
    # Cache salts of texts that the safety gate blocks, which are not
    # everybody's whatever the store says.
    self.blocked: set[str] = set()
    self._store, self._tokens, self._is_private = store, tokens, is_private

  def may_be_kept(self, name: groups.Name) -> bool:
    """Returns whether a group of this name is ever saved."""
    tree = sharing.Tree.parse(name.cache_salt.decode())
    if tree is None:
      return False
    is_shared = name.conversation is None and not tree.owner
    return is_shared or self._is_private

  def is_kept(self, name: groups.Name) -> bool:
    """Returns whether a group may be saved, or taken back.

    Raises:
      characters.Unavailable: the store cannot be reached.
      ValueError: the tokens cannot be read.
    """
    if not self.may_be_kept(name):
      return False
    tree = sharing.Tree.parse(name.cache_salt.decode())
    if name.conversation is not None:
      return self._is_conversation_kept(name, tree)
    if tree.owner:
      return self._is_private_kept(tree)
    if tree.salt not in self.blocked and sharing.is_public(self._store, tree):
      return True
    return self._is_private and sharing.is_read(self._store, tree)

  def _is_conversation_kept(
    self, name: groups.Name, tree: sharing.Tree
  ) -> bool:
    owner = name.owner.decode()
    if not self._is_known(owner):
      return False
    store = self._store
    try:
      session = store.session(owner, name.conversation)
      version = store.version(session.character, session.version)
    except characters.Missing:
      return False
    is_current = sharing.find_tree(store, owner, version) == tree
    return is_current and (not tree.owner or self._is_private_kept(tree))

  def _is_private_kept(self, tree: sharing.Tree) -> bool:
    # Nothing of a removed character is saved, though its sessions go on.
    return self._is_known(tree.owner) and sharing.can_begin(self._store, tree)

  def _is_known(self, owner: str) -> bool:
    known = {token.owner for token in self._tokens.list_all()}
    return owner in known | {auth.LOCAL}
