"""Pseudonyms of texts and conversations, for tables and announcements.

They are HMACs under a key of the fleet, so that nobody who sees a table or an
announcement learns of a private character, or who talks to whom.
"""

from collections.abc import Hashable

from kaiju_jax.storage import sealed

# Hex digits of a pseudonym that fit a policy's arithmetic.
_DIGITS = 15


class Pseudonyms:
  """The pseudonyms of one fleet, the same in each process with its secret."""

  def __init__(self, secret: bytes):
    self._sealer = sealed.Sealer(secret, 'routing')

  @property
  def fleet(self) -> str:
    """Hex that names the fleet, and tells nothing of its secret."""
    return self._sealer.pseudonym(b'fleet').hex()

  def salt(self, cache_salt: str) -> str:
    """Returns the pseudonym of a cache salt, hex."""
    return self._sealer.pseudonym(b'salt ' + cache_salt.encode()).hex()

  def conversation(self, owner: str, conversation: Hashable) -> str:
    """Returns the pseudonym of an owner's conversation, hex."""
    text = repr((owner, conversation)).encode()
    return self._sealer.pseudonym(b'conversation ' + text).hex()


def number(pseudonym: str) -> int:
  """Returns a pseudonym as a number of 60 bits, for `policies.pick`."""
  return int(pseudonym[:_DIGITS], 16)
