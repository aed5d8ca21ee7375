"""Characters and conversations: their types, and what a store of them does.

A *character* is published as a row of immutable *versions*, of which one is
live. A version holds what a person wrote (`card_fields.Fields`) and the tokens
of the prefix made of it; its digest names these tokens, so that caches share
what is equal, a rollback is warm, and an edit of a tag costs nothing. A
*session* is one conversation of one owner; it stays with the version that was
live when it started. Its *messages* are a tree:

    0 greeting ── 1 user ── 2 reply          the head is 5: the path 0 1 3 4 5
              │         └─ 3 reply ── 4 user ── 5 reply    3 is a swipe of 2
              └─ 6 user                                    6 is an edit of 1

Nothing in a tree is ever changed: another candidate for a reply, and an edited
message, is a sibling, and the *head* says which path is shown.

What belongs to somebody else is `Missing`, like what does not exist: a store
never tells the two apart. A character of the owner '' is built in, and
everybody's.

The sources name immutable versions, pinned sessions and rollback; the tree, the
errors and the limits are our guess.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from types import EllipsisType
from typing import Protocol

import numpy as np

from kaiju_jax.characters.cards import card_fields

USER, ASSISTANT = 'user', 'assistant'
BUILT_IN = ''  # The owner of characters that are everybody's.

# The texts with which a session may start, made of what the character's author
# wrote; the first is the greeting, the others are its alternates.
Greetings = Callable[[card_fields.Fields], Sequence[str]]


class Missing(LookupError):
  """No such character, version, session or message for this owner."""


class NotOwner(PermissionError):
  """A public character, which only its owner may change."""


class Conflict(RuntimeError):
  """What the caller expected is no longer so; nothing was written."""


class Unavailable(RuntimeError):
  """The store is away.

  A write that raises this may have been stored all the same, where the answer
  was lost: read before repeating it, or repeat it with `if_head`.

  Attributes:
    fault: what is wrong, as anybody may be told; the message says where, too.
  """

  def __init__(self, place: str, fault: str, detail: str = ''):
    super().__init__(f'{place}: {fault}{detail and f" ({detail})"}.')
    self.fault = fault


class OverLimit(ValueError):
  """Larger or more than the store takes; names the field, size and limit."""


@dataclasses.dataclass(frozen=True)
class Version:
  """What was published once; never changed.

  Attributes:
    character: the character's id.
    number: 1 for the first.
    digest: hex, of the prefix's tokens and the tokenizer.
    tokens: int32 [n], the prefix; read-only.
    tokenizer: digest of the tokenizer that made the tokens.
    fields: what a person wrote; not to be changed.
    created: unix seconds.
  """

  character: str
  number: int
  digest: str
  # The digest stands for the tokens when versions are compared.
  tokens: np.ndarray = dataclasses.field(compare=False, repr=False)
  tokenizer: str
  fields: card_fields.Fields
  created: float


@dataclasses.dataclass(frozen=True)
class Character:
  """Who can be talked to.

  Attributes:
    id: readable in a list of models: a word or two of its first name, and
      random characters. No id is a secret: what may be read depends on owners.
    owner: who publishes it; '' for one that is built in.
    name: the live version's.
    live: number of the version with which sessions start; 0 for a character
      that was removed, which no operation returns.
    last: number of the newest version.
    is_public: whether others may talk to it, too.
    created: unix seconds.
  """

  id: str
  owner: str
  name: str
  live: int
  last: int
  is_public: bool
  created: float


@dataclasses.dataclass(frozen=True)
class Message:
  """A node of a session's tree; never changed.

  Attributes:
    id: its place in the session, from 0, in the order in which they came.
    parent: what it answers; None for one that starts the conversation.
    role: 'user' or 'assistant'.
    text: what was said.
    tokens: those that the model drew; None where the text was written.
    finish: why the model ended, as OpenAI's finish_reason; None for others.
    created: unix seconds.
  """

  id: int
  parent: int | None
  role: str
  text: str
  tokens: tuple[int, ...] | None = None
  finish: str | None = None
  created: float = 0.0


@dataclasses.dataclass(frozen=True)
class Session:
  """One conversation of one owner with one version of a character.

  Attributes:
    id: random, unguessable.
    owner: whose it is.
    character: the character's id.
    version: number of the version to which it is pinned.
    greeting: which of the greetings it started with.
    head: id of the message that ends the path shown; None before any message.
    title: the character's name at first.
    created: unix seconds.
    updated: unix seconds of the last change.
    count: messages in the tree.
    size: bytes of their texts and tokens.
  """

  id: str
  owner: str
  character: str
  version: int
  greeting: int
  head: int | None
  title: str
  created: float
  updated: float
  count: int
  size: int


def path(messages: Sequence[Message], head: int | None) -> tuple[Message, ...]:
  """Returns the messages from the conversation's start to its head."""
  found = []
  while head is not None:
    found.append(messages[head])
    head = messages[head].parent
  return tuple(reversed(found))


def cursor(one: Character | Session) -> str:
  """Returns the `after` of a listing that goes on behind `one`."""
  when = one.updated if isinstance(one, Session) else one.created
  return f'{when!r}:{one.id}'


class Store(Protocol):
  """Characters and conversations, kept.

  Every method may be called from any thread, blocks, and writes all or nothing,
  in one transaction.

  Raises:
    Missing: no such thing for this owner.
    NotOwner: a change of somebody else's public character.
    OverLimit: a text that is too long, or one thing too many.
    TypeError, ValueError: an argument that is no such thing; names it.
    Unavailable: the store is away.
  """

  def publish(
    self,
    owner: str,
    fields: card_fields.Fields,
    prefix_tokens: Sequence[int] | np.ndarray,
    tokenizer: str,
    character: str | None = None,
    is_public: bool | None = None,
  ) -> Version:
    """Publishes a new version and makes it live.

    What equals the live version is not published again: that one is returned,
    so that a repeated request does no harm.

    Args:
      owner: whose character it is.
      fields: what a person wrote.
      prefix_tokens: int32 [n], made of the fields.
      tokenizer: digest of the tokenizer that made the tokens.
      character: the id of one's own character; None for a new one. For
        built-in characters an id of the caller's choice, made where there is
        none.
      is_public: whether others may talk to it; None leaves it as it is, and a
        new character private.
    """

  def rollback(self, owner: str, character: str, number: int) -> Version:
    """Makes an earlier, or later, version live, and returns it."""

  def character(self, viewer: str, character: str) -> Character:
    """Returns a character that is one's own, public or built in."""

  def live(self, viewer: str, character: str) -> Version:
    """Returns the live version of a character that `viewer` may see."""

  def version(self, character: str, number: int) -> Version:
    """Returns a version, whoever asks: for the server's own use.

    A session's version stays readable for it, though its character is private
    or removed by now. Never pass on an id and a number that a client named.
    """

  def versions(
    self,
    viewer: str,
    character: str,
    limit: int = 100,
    before: int | None = None,
  ) -> tuple[Version, ...]:
    """Returns versions, the newest first.

    Others than the owner see the live one alone, because what was published
    before a character became public was private.

    Args:
      viewer: who asks.
      character: its id.
      limit: how many at most.
      before: only numbers below; None for all.
    """

  def characters(
    self, viewer: str, limit: int = 100, after: str = ''
  ) -> tuple[Character, ...]:
    """Returns one's own, public and built-in characters, the oldest first.

    Args:
      viewer: who asks.
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
    """

  def remove(self, owner: str, character: str) -> None:
    """Removes a character; sessions go on with the version they have.

    Versions to which no session is pinned are deleted at once, others with the
    last session.
    """

  def open_session(
    self,
    owner: str,
    character: str,
    greeting: int = 0,
    greetings: Greetings | None = None,
  ) -> Session:
    """Starts a conversation with the live version.

    Args:
      owner: whose it is.
      character: id of one's own, a public or a built-in character.
      greeting: which of the greetings is the head; 0 where there are none.
      greetings: makes their texts of the version's fields; None takes them as
        they were written, and leaves out empty ones.
    """

  def session(self, owner: str, session: str) -> Session:
    """Returns one's own session."""

  def sessions(
    self,
    owner: str,
    limit: int = 100,
    after: str = '',
    is_oldest_first: bool = False,
  ) -> tuple[Session, ...]:
    """Returns one's own sessions, by their last change, the latest first.

    Args:
      owner: who asks.
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
      is_oldest_first: the other way round.
    """

  def count_sessions(self, owner: str) -> int:
    """Returns how many sessions an owner has."""

  def idle(self, before: float, limit: int = 100) -> tuple[Session, ...]:
    """Returns sessions of all owners unchanged since `before`, oldest first.

    For the server's own use: what a policy of retention removes.
    """

  def remove_session(self, owner: str, session: str) -> None:
    """Removes a session and its messages."""

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
  ) -> Message:
    """Adds a message to a session's tree and moves the head there.

    Args:
      owner: who asks.
      session: its id.
      parent: what the message answers; None to start the conversation anew.
      role: 'user' or 'assistant'.
      text: what was said.
      tokens: those that the model drew; None where the text was written.
      finish: OpenAI's finish_reason; None for none.
      if_head: the head that the caller saw; `...` checks nothing.

    Raises:
      Conflict: the head is another by now.
    """

  def messages(self, owner: str, session: str) -> tuple[Message, ...]:
    """Returns all messages of a session; each id is the place in the tuple."""

  def set_head(
    self,
    owner: str,
    session: str,
    message: int,
    if_head: int | EllipsisType | None = ...,
  ) -> Session:
    """Shows the path that ends with `message`.

    Raises:
      Conflict: `if_head` is given, and the head is another by now.
    """

  def rename(self, owner: str, session: str, title: str) -> Session:
    """Gives a session another title."""

  def check(self) -> None:
    """Returns where the store takes writes: it writes what nobody reads.

    Raises:
      Unavailable: it does not.
    """

  def close(self) -> None:
    """Closes the store; whatever is called afterwards is Unavailable."""
