"""Publishes, rolls back, lists and removes characters and their versions."""

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters as characters_lib
from kaiju_jax.serving.stores import records


class Publishing(records.Keeper):
  """The operations of a store on characters and versions."""

  def publish(
    self,
    owner: str,
    fields: card_fields.Fields,
    prefix_tokens: Sequence[int] | np.ndarray,
    tokenizer: str,
    character: str | None = None,
    is_public: bool | None = None,
  ) -> characters_lib.Version:
    """Publishes a new version and makes it live.

    If nothing differs from the live version, that version is returned, so that
    a repeated request does no harm.

    Args:
      prefix_tokens: int32 [n], made of the fields.
      tokenizer: digest of the tokenizer that made the tokens.
      character: the id of the owner's character; None for a new one. For a
        built-in character, an id that the caller chooses, new or existing.
      is_public: whether other owners may talk to it. None leaves it unchanged;
        a new character is then private.
    """
    limits = self._limits
    rules.owner(owner, limits, may_be_built_in=True)
    card_fields.check(fields)
    # A copy of plain data, so that this call returns what later reads return.
    fields = rules.fields_of(rules.json_of(fields))
    tokens = rules.tokens(prefix_tokens, 'prefix_tokens', limits.prefix)
    rules.text(tokenizer, 'tokenizer', limits.owner)
    is_built_in = owner == characters_lib.BUILT_IN
    is_new = character is None
    if is_new:
      character = rules.character_id(fields.name)
    else:
      rules.refuse_no_id(character, 'character', is_named=is_built_in)
    version = characters_lib.Version(
      character,
      1,
      rules.digest(tokens, tokenizer),
      tokens,
      tokenizer,
      fields,
      self._clock(),
    )

    def publish(at: records.Writes) -> characters_lib.Version:
      held = at.character(character)
      if held is None and (is_new or is_built_in):
        return self._first(at, owner, version, bool(is_public))
      # A built-in one that was removed comes back, with its next number.
      if held is None or not is_built_in or held.owner != owner:
        held = rules.check_owner(held, owner, character)
      return self._next(at, held, version, is_public)

    return self._write(publish)

  def _check(self, owner: str, character: str) -> None:
    rules.owner(owner, self._limits, may_be_built_in=True)
    rules.refuse_no_id(character, 'character')

  def _first(self, at: records.Writes, owner, version, is_public):
    if at.count_characters(owner) >= self._limits.characters:
      raise characters_lib.OverLimit(
        f'{self._limits.characters:,} characters are as many as one owner may'
        ' have: remove one first.'
      )
    at.add_version(version)
    at.put_character(
      characters_lib.Character(
        version.character,
        owner,
        version.fields.name,
        version.number,
        version.number,
        is_public,
        version.created,
      )
    )
    return version

  def _next(self, at: records.Writes, held, version, is_public):
    is_public = held.is_public if is_public is None else is_public
    live = at.version(held.id, held.live) if held.live else None
    same = version.digest, version.fields
    if live is not None and (live.digest, live.fields) == same:
      version = live
    else:
      if held.last >= self._limits.versions:
        raise characters_lib.OverLimit(
          f'character {held.id}: {self._limits.versions:,} versions are as many'
          ' as one character may have: publish a new character.'
        )
      version = dataclasses.replace(version, number=held.last + 1)
      at.add_version(version)
    changed = dataclasses.replace(
      held,
      name=version.fields.name,
      live=version.number,
      last=max(held.last, version.number),
      is_public=bool(is_public),
    )
    if changed != held:
      at.put_character(changed)
    return version

  def rollback(
    self,
    owner: str,
    character: str,
    number: int,
    if_public: bool | None = None,
  ) -> characters_lib.Version:
    """Makes another version live, and returns it.

    Args:
      if_public: the `is_public` by which the caller judged the version; None
        skips the check. If it differs, a `Conflict`.
    """
    self._check(owner, character)
    rules.integer(number, 'number', least=1)

    def rollback(at: records.Writes) -> characters_lib.Version:
      held = rules.check_owner(at.character(character), owner, character)
      version = _version(at, character, number)
      if if_public is not None and held.is_public != if_public:
        change = 'public' if held.is_public else 'private'
        raise characters_lib.Conflict(
          f'character {character}: made {change} meanwhile; ask again.'
        )
      changed = dataclasses.replace(held, live=number, name=version.fields.name)
      if changed != held:
        at.put_character(changed)
      return version

    return self._write(rollback)

  def character(self, viewer: str, character: str) -> characters_lib.Character:
    """Returns a character that is the viewer's, public or built in."""
    self._check(viewer, character)
    return self._read(
      lambda at: rules.visible(at.character(character), viewer, character)
    )

  def live(self, viewer: str, character: str) -> characters_lib.Version:
    """Returns the live version of a character that `viewer` may see."""
    self._check(viewer, character)

    def live(at: records.Reads) -> characters_lib.Version:
      held = rules.visible(at.character(character), viewer, character)
      return _version(at, character, held.live)

    return self._read(live)

  def version(self, character: str, number: int) -> characters_lib.Version:
    """Returns a version without checking access, for the server's own use.

    A session can read its version even if the character has become private or
    was removed. Never pass an id and a number from a client.
    """
    rules.refuse_no_id(character, 'character')
    rules.integer(number, 'number', least=1)
    return self._read(lambda at: _version(at, character, number))

  def find_character(self, character: str) -> characters_lib.Character:
    """Returns a character without checking access, also one that was removed.

    For the server's own use, such as to whom a cached text belongs. Never show
    the result to a client.
    """
    rules.refuse_no_id(character, 'character')

    def find(at: records.Reads) -> characters_lib.Character:
      found = at.character(character)
      if found is None:
        raise rules.no_character(character)
      return found

    return self._read(find)

  def has_sessions(self, character: str, digest: str, of_owner: bool) -> bool:
    """Returns whether sessions keep a version with this digest.

    For the server's own use. `of_owner` asks for sessions of the character's
    owner; otherwise for those of all others.
    """
    rules.refuse_no_id(character, 'character')

    def has_sessions(at: records.Reads) -> bool:
      held = at.character(character)
      return held is not None and at.has_sessions(held, digest, of_owner)

    return self._read(has_sessions)

  def versions(
    self,
    viewer: str,
    character: str,
    limit: int = 100,
    before: int | None = None,
  ) -> tuple[characters_lib.Version, ...]:
    """Returns versions, newest first.

    Viewers other than the owner see only the live one, because a public
    character's earlier versions may be private.

    Args:
      limit: how many at most.
      before: only lower numbers; None for all.
    """
    self._check(viewer, character)
    limit = self._page(limit)
    if before is not None:
      rules.integer(before, 'before')

    def versions(at: records.Reads) -> tuple[characters_lib.Version, ...]:
      held = rules.visible(at.character(character), viewer, character)
      most = held.last if before is None else min(held.last, before - 1)
      numbers = range(most, 0, -1)
      if held.owner != viewer:
        numbers = [number for number in numbers if number == held.live]
      # What was removed before it came back has lost what nobody used.
      each = (at.version(character, number) for number in numbers)
      kept = (version for version in each if version is not None)
      return tuple(itertools.islice(kept, limit))

    return self._read(versions)

  def characters(
    self, viewer: str, limit: int = 100, after: str = ''
  ) -> tuple[characters_lib.Character, ...]:
    """Returns the viewer's, public and built-in characters, oldest first.

    Args:
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
    """
    rules.owner(viewer, self._limits, may_be_built_in=True)
    limit, begin = self._page(limit), rules.parse_cursor(after)
    return self._read(lambda at: at.visible_characters(viewer, limit, begin))

  def remove(self, owner: str, character: str) -> None:
    """Removes a character; its sessions continue with their versions.

    A version to which no session is pinned is deleted at once, any other with
    its last session.
    """
    self._check(owner, character)

    def remove(at: records.Writes) -> None:
      held = rules.check_owner(at.character(character), owner, character)
      for number in range(1, held.last + 1):
        if not at.pins(character, number):
          at.drop_version(character, number)
      # What is left says which numbers were given: none is given again.
      at.put_character(
        dataclasses.replace(held, live=0, name='', is_public=False)
      )

    self._write(remove)


def _version(at: records.Reads, character: str, number: int):
  version = at.version(character, number)
  if version is None:
    raise characters_lib.Missing(f'character {character}: no version {number}.')
  return version
