"""Starts, continues, rates, lists and removes sessions and their messages."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from types import EllipsisType

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import publishing
from kaiju_jax.serving.stores import records


class Store(publishing.Publishing):
  """A store of characters and conversations, without the storage itself.

  Every method may be called from any thread and blocks. Each writes in one
  transaction, completely or not at all.

  Raises:
    Missing: the owner can see no such character, version, session or message.
    NotOwner: a change of another owner's visible character.
    OverLimit: a text is too long, or there are too many things of a kind.
    TypeError, ValueError: an argument is not valid; names it.
    Unavailable: the store cannot be reached, or refuses.
  """

  def open_session(
    self,
    owner: str,
    character: str,
    greeting: int = 0,
    greetings: characters.Greetings | None = None,
    version: characters.Version | None = None,
  ) -> characters.Session:
    """Starts a conversation with the live version.

    Args:
      greeting: index of the greeting that becomes the head; 0 where there are
        none.
      greetings: makes the greetings' texts from the version's fields; None
        takes them as written, without empty ones.
      version: the character's version that was live when the caller made its
        greetings; None for the one that is live now.
    """
    rules.owner(owner, self._limits)
    rules.integer(greeting, 'greeting')
    if version is None:
      version = self.live(owner, character)
    elif version.character != character:
      raise ValueError(f'version: is of {version.character}, not {character}.')
    # Made once, outside the transaction, which may run again.
    texts = tuple((greetings or rules.greetings)(version.fields))
    if greeting and greeting >= len(texts):
      raise ValueError(
        f'greeting={greeting}: character {character} has {len(texts)}'
        ' greetings, counted from 0.'
      )
    now = self._clock()
    messages = [
      self._check_message(
        characters.Message(
          number, None, characters.ASSISTANT, text, created=now
        )
      )
      for number, text in enumerate(texts)
    ]
    session = characters.Session(
      rules.session_id(),
      owner,
      character,
      version.number,
      greeting,
      greeting if messages else None,
      version.fields.name,
      now,
      now,
      len(messages),
      sum(rules.size(one.text, None) for one in messages),
    )
    self._refuse_full(session)

    def open_session(at: records.Writes) -> characters.Session:
      # It may have been removed, or made private, since it was read.
      rules.visible(at.character(character), owner, character)
      if at.count_sessions(owner) >= self._limits.sessions:
        raise characters.OverLimit(
          f'{self._limits.sessions:,} sessions are as many as one owner may'
          ' have: remove one first.'
        )
      at.put_session(session)
      for message in messages:
        at.add_message(session, message)
      return session

    return self._write(open_session)

  def session(self, owner: str, session: str) -> characters.Session:
    """Returns a session of the owner."""
    find = self._session_of(owner, session)
    return self._read(find)

  def sessions(
    self,
    owner: str,
    limit: int = 100,
    after: str = '',
    is_oldest_first: bool = False,
  ) -> tuple[characters.Session, ...]:
    """Returns the owner's sessions by their last change, latest first.

    Args:
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
    """
    rules.owner(owner, self._limits)
    limit, begin = self._page(limit), rules.parse_cursor(after)
    return self._read(
      lambda at: at.sessions(owner, limit, begin, is_oldest_first)
    )

  def count_sessions(self, owner: str) -> int:
    """Returns how many sessions an owner has."""
    rules.owner(owner, self._limits)
    return self._read(lambda at: at.count_sessions(owner))

  def idle(
    self, before: float, limit: int = 100
  ) -> tuple[characters.Session, ...]:
    """Returns sessions of all owners unchanged since `before`, oldest first.

    For the server's own use, such as a retention policy that removes them.
    """
    limit = self._page(limit)
    return self._read(lambda at: at.idle(float(before), limit))

  def remove_session(self, owner: str, session: str) -> None:
    """Removes a session and its messages."""
    find = self._session_of(owner, session)

    def remove_session(at: records.Writes) -> None:
      held = find(at)
      character, number = held.character, held.version
      # Every new session of a character changes its pins, so reading them
      # invites conflicts; they are read only where it matters.
      is_removed = not at.character(character).live
      is_unused = is_removed and at.pins(character, number) == 1
      at.drop_session(held)
      if is_unused:
        at.drop_version(character, number)

    self._write(remove_session)

  def append(
    self,
    owner: str,
    session: str,
    parent: int | None,
    role: str,
    text: str,
    tokens: Sequence[int] | None = None,
    finish: str | None = None,
    if_head: int | EllipsisType | None = ...,
    reasoning: str | None = None,
    drawn: characters.Drawn | None = None,
  ) -> characters.Message:
    """Adds a message to a session's tree and makes it the head.

    Args:
      parent: id of the message that it answers; None to start the conversation
        again.
      tokens, finish, reasoning, drawn: as in `characters.Message`.
      if_head: the head that the caller saw; `...` skips the check.

    Raises:
      Conflict: the head differs from `if_head`.
    """
    find = self._session_of(owner, session)
    if parent is not None:
      rules.integer(parent, 'parent')
    # Without its number, which the session's count will give it.
    now = self._clock()
    draft = self._check_message(
      characters.Message(
        0, parent, role, text, tokens, finish, now, reasoning, drawn
      )
    )

    def append(at: records.Writes) -> characters.Message:
      held = find(at)
      if if_head is not ... and held.head != if_head:
        raise characters.Conflict(
          f'session {held.id}: its head is message {held.head}, not {if_head}:'
          ' it went on elsewhere. Read it again.'
        )
      _refuse_no_message(held, parent)
      message = dataclasses.replace(draft, id=held.count)
      changed = dataclasses.replace(
        held,
        head=message.id,
        updated=max(held.updated, message.created),
        count=held.count + 1,
        size=held.size
        + rules.size(text, message.tokens)
        + rules.size(reasoning or '', None),
      )
      self._refuse_full(changed)
      at.add_message(changed, message)
      at.put_session(changed)
      return message

    return self._write(append)

  def messages(
    self, owner: str, session: str
  ) -> tuple[characters.Message, ...]:
    """Returns all messages of a session; each id is its index in the tuple."""
    find = self._session_of(owner, session)
    return self._read(lambda at: at.messages(find(at)))

  def rate(
    self, owner: str, session: str, message: int, rating: str | None
  ) -> str | None:
    """Rates a reply of the model, and returns its former rating.

    Args:
      rating: one of `RATINGS`; None withdraws the former one.

    Raises:
      ValueError: the model did not draw the message.
    """
    find = self._session_of(owner, session)
    rules.integer(message, 'message')
    characters.check_rating(rating)

    def rate(at: records.Writes) -> str | None:
      held = find(at)
      _refuse_no_message(held, message)
      if at.messages(held)[message].finish is None:
        raise ValueError(
          f'message {message}: a person wrote it: only what the model replied'
          ' has a rating.'
        )
      former = at.ratings(held).get(message)
      if former != rating:
        at.put_rating(held, message, rating)
      return former

    return self._write(rate)

  def ratings(self, owner: str, session: str) -> dict[int, str]:
    """Returns the ratings of a session by message."""
    find = self._session_of(owner, session)
    return self._read(lambda at: at.ratings(find(at)))

  def agree(self, owner: str, agrees: bool, if_new: bool = False) -> bool:
    """Records and returns whether an owner's conversations may be exported.

    Args:
      if_new: leaves an earlier word as it is, and returns that.
    """
    rules.owner(owner, self._limits)
    if not isinstance(agrees, bool):
      raise TypeError(f'agrees={agrees!r}: must be True or False.')

    def agree(at: records.Writes) -> bool:
      former = at.agreement(owner)
      if former is not None and (if_new or former == agrees):
        return former
      at.put_agreement(owner, agrees)
      return agrees

    return self._write(agree)

  def agreement(self, owner: str) -> bool | None:
    """Returns an owner's recorded word; None for none."""
    rules.owner(owner, self._limits)
    return self._read(lambda at: at.agreement(owner))

  def agreements(self) -> dict[str, bool]:
    """Returns the recorded words of all owners; for the export alone."""
    return self._read(lambda at: at.agreements())

  def set_head(
    self, owner: str, session: str, message: int
  ) -> characters.Session:
    """Makes `message` the head, so that the path to it is shown."""
    rules.integer(message, 'message')

    def set_head(held: characters.Session) -> characters.Session:
      _refuse_no_message(held, message)
      return dataclasses.replace(held, head=message)

    return self._change(owner, session, set_head)

  def rename(self, owner: str, session: str, title: str) -> characters.Session:
    """Changes a session's title."""
    rules.text(title, 'title', 4 * self._limits.title)
    if len(title) > self._limits.title:
      raise characters.OverLimit(
        f'title has {len(title)} characters: at most {self._limits.title}.'
      )
    return self._change(
      owner, session, lambda held: dataclasses.replace(held, title=title)
    )

  def _change(self, owner, session, change) -> characters.Session:
    find = self._session_of(owner, session)
    now = self._clock()

    def write(at: records.Writes) -> characters.Session:
      held = find(at)
      changed = dataclasses.replace(
        change(held), updated=max(held.updated, now)
      )
      at.put_session(changed)
      return changed

    return self._write(write)

  def _session_of(
    self, owner: str, session: str
  ) -> Callable[[records.Reads], characters.Session]:
    """Returns what finds an owner's session in a transaction."""
    rules.owner(owner, self._limits)
    rules.refuse_no_id(session, 'session')
    return lambda at: rules.session(at.session(session), owner, session)

  def _check_message(self, message: characters.Message) -> characters.Message:
    """Returns a message within the limits, with its tokens as plain numbers."""
    limits, tokens = self._limits, message.tokens
    if message.role not in (characters.USER, characters.ASSISTANT):
      shown = card_fields.abbreviate(message.role)
      raise ValueError(f"role={shown}: must be 'user' or 'assistant'.")
    rules.text(message.text, 'text', limits.text)
    if tokens is not None:
      tokens = tuple(rules.tokens(tokens, 'tokens', limits.tokens).tolist())
    if message.finish is not None:
      rules.text(message.finish, 'finish', limits.owner)
    if message.reasoning is not None:
      rules.text(message.reasoning, 'reasoning', limits.text)
    return dataclasses.replace(message, tokens=tokens)

  def _refuse_full(self, session: characters.Session) -> None:
    for what, has, most in (
      ('messages', session.count, self._limits.messages),
      ('bytes', session.size, self._limits.size),
    ):
      if has > most:
        raise characters.OverLimit(
          f'session {session.id}: {has:,} {what}; a session has at most'
          f' {most:,}. Start a new one.'
        )


def _refuse_no_message(held: characters.Session, message: int | None) -> None:
  if message is not None and message >= held.count:
    raise characters.Missing(
      f'session {held.id}: no message {message}; the last is {held.count - 1}.'
    )
