"""Adds, revokes and lists the tokens of a server."""

import dataclasses
import pathlib

from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.serving.http import auth


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenChange:
  """What a command does to a server's tokens."""

  # Print a new token of NAME.
  add_token: str | None = None
  # Age of --add_token's owner.
  token_age: settings_lib.Age = auth.UNKNOWN
  # Priority of --add_token's; higher goes first.
  token_tier: int = 0
  # Whether --add_token's owner, an adult, agrees that conversations are
  # exported to train a model; the page withdraws it.
  token_feedback: bool = False
  # Remove a token by its id, or all of an owner.
  revoke_token: str | None = None
  # Print all tokens.
  list_tokens: bool = False

  @property
  def is_wanted(self) -> bool:
    """Whether there is anything to do."""
    return bool(self.add_token or self.revoke_token or self.list_tokens)

  def apply(self, folder: pathlib.Path) -> None:
    """Changes the tokens in a server's folder, and prints what was done.

    Raises:
      OSError, ValueError: as `auth.Tokens` and `server_folder.forget_owner`.
      LookupError: no token is to be revoked.
    """
    tokens = auth.Tokens(folder / auth.FILE)
    if self.add_token:
      print(
        tokens.add(
          self.add_token,
          self.token_age,
          self.token_tier,
          feedback=self.token_feedback,
        )
      )
      print(
        'The token is shown this once; send it as "Authorization: Bearer …".',
        flush=True,
      )
    if self.revoke_token:
      gone = tokens.revoke(self.revoke_token)
      for owner in {one.owner for one in gone}:
        server_folder.forget_owner(folder, owner)
      ids = ', '.join(one.id for one in gone)
      print(f'{len(gone)} revoked: {ids}', flush=True)
    if self.list_tokens:
      for one in tokens.list_all():
        agrees = '  feedback' if one.feedback else ''
        print(f'{one.id}  {one.owner}  {one.age}  tier {one.tier}{agrees}')
