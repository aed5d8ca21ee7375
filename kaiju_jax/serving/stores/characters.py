"""Characters and conversations: their types, and the interface of their store.

A *character* is published as a sequence of immutable *versions*; one of them is
live. A version holds the author's texts (`card_fields.Fields`) and the tokens
of the prompt's prefix that is made of them. Its digest identifies these tokens:
versions with equal prefixes share a cache entry, so that a rollback or an edit
of a tag needs no new one. A *session* is one conversation of one owner (the API
token's user). It stays with the version that was live when it started. Its
*messages* are a tree:

    0 greeting ── 1 user ── 2 reply          the head is 5: the path 0 1 3 4 5
              │         └─ 3 reply ── 4 user ── 5 reply    3 is a swipe of 2
              └─ 6 user                                    6 is an edit of 1

No message ever changes: another candidate for a reply (a swipe) or an edited
message becomes a sibling. The *head* is the last message of the path shown.

A store raises `Missing` both for what belongs to another owner and for what
does not exist, so that a caller cannot tell the two apart. A character of the
owner '' is built in, and all owners may talk to it.

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
from kaiju_jax.serving.stores import feedback

USER, ASSISTANT = 'user', 'assistant'
BUILT_IN = ''  # The owner of characters that are everybody's.

# Makes the texts with which a session may start from the author's texts: first
# the greeting, then its alternates.
Greetings = Callable[[card_fields.Fields], Sequence[str]]


class Missing(LookupError):
  """No such character, version, session or message for this owner."""


class NotOwner(PermissionError):
  """A change of a visible character by another than its owner."""


class Conflict(RuntimeError):
  """A write that lost to other writes; nothing was written."""


class Unavailable(RuntimeError):
  """A store that cannot be reached, or refuses.

  A write that raises this may still have been stored, if only the answer was
  lost. Read before you repeat it, or repeat it with `if_head`.
  """

  def __init__(self, place: str, fault: str, detail: str = ''):
    super().__init__(f'{place}: {fault}{detail and f" ({detail})"}.')
    # The problem, in words that a client may see. The message also says where
    # the store is.
    self.fault = fault


class OverLimit(ValueError):
  """A value above a limit of the store; names the field, size and limit."""


@dataclasses.dataclass(frozen=True)
class Version:
  """A published state of a character; never changed."""

  character: str  # The character's id.
  number: int  # 1 for the first.
  digest: str  # hex, of the prefix's tokens and the tokenizer.
  # Comparisons use the digest in place of the tokens.
  # int32 [n], the prefix; read-only.
  tokens: np.ndarray = dataclasses.field(compare=False, repr=False)
  tokenizer: str  # Digest of the tokenizer that made the tokens.
  fields: card_fields.Fields  # The author's texts; do not change them.
  created: float  # Unix seconds.


@dataclasses.dataclass(frozen=True)
class Character:
  """A character, without its versions."""

  # A word or two of its first name, and random characters. No id is a secret:
  # access depends on owners.
  id: str
  owner: str  # The owner, who publishes it; '' for one that is built in.
  name: str  # The live version's name.
  # Number of the version with which sessions start; 0 for a character that was
  # removed, which no operation returns.
  live: int
  last: int  # Number of the newest version.
  is_public: bool  # Whether other owners may talk to it.
  created: float  # Unix seconds.


@dataclasses.dataclass(frozen=True)
class Message:
  """A node of a session's tree; never changed."""

  id: int  # Its index in the session, from 0, in order of arrival.
  # Id of the message that it answers; None where it starts the conversation.
  parent: int | None
  role: str  # 'user' or 'assistant'.
  text: str
  # The tokens that the model drew, those of the reasoning included; None for a
  # text that a person wrote.
  tokens: tuple[int, ...] | None = None
  # OpenAI's finish_reason; None for a text that a person wrote.
  finish: str | None = None
  created: float = 0.0  # Unix seconds.
  # What the model wrote before the text; None for nothing.
  reasoning: str | None = None
  # How the model drew it; None where a person wrote it, or an older server
  # stored it.
  drawn: feedback.Drawn | None = None


@dataclasses.dataclass(frozen=True)
class Session:
  """One conversation of one owner with one version of a character."""

  id: str  # random, unguessable.
  owner: str
  character: str  # The character's id.
  version: int  # Number of the version to which it is pinned.
  greeting: int  # Index of the greeting that it started with.
  # Id of the message that ends the path shown; None before any message.
  head: int | None
  title: str  # The character's name at first.
  created: float  # Unix seconds.
  updated: float  # Unix seconds of the last change.
  count: int  # Messages in the tree.
  size: int  # Bytes of their texts and tokens.


def path(messages: Sequence[Message], head: int | None) -> tuple[Message, ...]:
  """Returns the messages from the conversation's start to its head."""
  found = []
  while head is not None:
    found.append(messages[head])
    head = messages[head].parent
  return tuple(reversed(found))


def cursor(one: Character | Session) -> str:
  """Returns the `after` of a listing that continues after `one`."""
  when = one.updated if isinstance(one, Session) else one.created
  return f'{when!r}:{one.id}'


class Store(feedback.Feedback, Protocol):
  """The interface of a store of characters and conversations.

  Every method may be called from any thread and blocks. Each writes in one
  transaction, completely or not at all.

  Raises:
    Missing: the owner can see no such character, version, session or message.
    NotOwner: a change of another owner's visible character.
    OverLimit: a text is too long, or there are too many things of a kind.
    TypeError, ValueError: an argument is not valid; names it.
    Unavailable: the store cannot be reached, or refuses.
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

    If nothing differs from the live version, that version is returned, so that
    a repeated request does no harm.

    Args:
      owner: the character's owner.
      fields: the author's texts.
      prefix_tokens: int32 [n], made of the fields.
      tokenizer: digest of the tokenizer that made the tokens.
      character: the id of the owner's character; None for a new one. For a
        built-in character, an id that the caller chooses, new or existing.
      is_public: whether other owners may talk to it. None leaves it unchanged;
        a new character is then private.
    """

  def rollback(
    self,
    owner: str,
    character: str,
    number: int,
    if_public: bool | None = None,
  ) -> Version:
    """Makes another version live, and returns it.

    Args:
      owner: the character's owner.
      if_public: the `is_public` by which the caller judged the version; None
        skips the check.

    Raises:
      Conflict: `is_public` differs from `if_public`.
    """

  def character(self, viewer: str, character: str) -> Character:
    """Returns a character that is the viewer's, public or built in."""

  def live(self, viewer: str, character: str) -> Version:
    """Returns the live version of a character that `viewer` may see."""

  def version(self, character: str, number: int) -> Version:
    """Returns a version without checking access, for the server's own use.

    A session can read its version even if the character has become private or
    was removed. Never pass an id and a number from a client.
    """

  def find_character(self, character: str) -> Character:
    """Returns a character without checking access, also one that was removed.

    For the server's own use, such as to whom a cached text belongs. Never show
    the result to a client.
    """

  def has_sessions(self, character: str, digest: str, of_owner: bool) -> bool:
    """Returns whether sessions keep a version with this digest.

    For the server's own use.

    Args:
      digest: the version's, or that of several.
      of_owner: asks for sessions of the character's owner; otherwise for those
        of all others.
    """

  def versions(
    self,
    viewer: str,
    character: str,
    limit: int = 100,
    before: int | None = None,
  ) -> tuple[Version, ...]:
    """Returns versions, newest first.

    Viewers other than the owner see only the live one, because a public
    character's earlier versions may be private.

    Args:
      viewer: the owner that asks.
      limit: how many at most.
      before: only lower numbers; None for all.
    """

  def characters(
    self, viewer: str, limit: int = 100, after: str = ''
  ) -> tuple[Character, ...]:
    """Returns the viewer's, public and built-in characters, oldest first.

    Args:
      viewer: the owner that asks.
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
    """

  def remove(self, owner: str, character: str) -> None:
    """Removes a character; its sessions continue with their versions.

    A version to which no session is pinned is deleted at once, any other with
    its last session.
    """

  def open_session(
    self,
    owner: str,
    character: str,
    greeting: int = 0,
    greetings: Greetings | None = None,
    version: Version | None = None,
  ) -> Session:
    """Starts a conversation with the live version.

    Args:
      owner: the new session's owner.
      character: id of the owner's, a public or a built-in character.
      greeting: index of the greeting that becomes the head; 0 where there are
        none.
      greetings: makes the greetings' texts from the version's fields; None
        takes them as written, without empty ones.
      version: the character's version that was live when the caller made its
        greetings; None for the one that is live now.
    """

  def session(self, owner: str, session: str) -> Session:
    """Returns a session of the owner."""

  def sessions(
    self,
    owner: str,
    limit: int = 100,
    after: str = '',
    is_oldest_first: bool = False,
  ) -> tuple[Session, ...]:
    """Returns the owner's sessions by their last change, latest first.

    Args:
      limit: how many at most; fewer mean that there are no more.
      after: `cursor` of the last one seen; '' to begin.
      is_oldest_first: reverses the order.
    """

  def count_sessions(self, owner: str) -> int:
    """Returns how many sessions an owner has."""

  def idle(self, before: float, limit: int = 100) -> tuple[Session, ...]:
    """Returns sessions of all owners unchanged since `before`, oldest first.

    For the server's own use, such as a retention policy that removes them.
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
    reasoning: str | None = None,
    drawn: feedback.Drawn | None = None,
  ) -> Message:
    """Adds a message to a session's tree and makes it the head.

    Args:
      parent: id of the message that it answers; None to start the conversation
        again.
      role: 'user' or 'assistant'.
      tokens: the tokens that the model drew; None for a text that a person
        wrote.
      finish: OpenAI's finish_reason; None for none.
      if_head: the head that the caller saw; `...` skips the check.
      reasoning: what the model wrote before the text; None for nothing.
      drawn: how the model drew it; None for a text that a person wrote.

    Raises:
      Conflict: the head differs from `if_head`.
    """

  def messages(self, owner: str, session: str) -> tuple[Message, ...]:
    """Returns all messages of a session; each id is its index in the tuple."""

  def set_head(
    self,
    owner: str,
    session: str,
    message: int,
    if_head: int | EllipsisType | None = ...,
  ) -> Session:
    """Makes `message` the head, so that the path to it is shown.

    Raises:
      Conflict: the head differs from the given `if_head`.
    """

  def rename(self, owner: str, session: str, title: str) -> Session:
    """Changes a session's title."""

  def check(self) -> None:
    """Tests by a write without effect that the store accepts writes.

    Raises:
      Unavailable: it does not.
    """

  def close(self) -> None:
    """Closes the store; later calls raise `Unavailable`."""
