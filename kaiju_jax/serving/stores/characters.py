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

A message that the model drew says how (`Drawn`): without that nobody knows
whether a model would still draw it.

The sources name immutable versions, pinned sessions and rollback; the tree, the
errors and the limits are our guess.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from kaiju_jax.characters.cards import card_fields

USER, ASSISTANT = 'user', 'assistant'
BUILT_IN = ''  # The owner of characters that are everybody's.
# What the owner of a session says about a reply: one rating per message.
GOOD, BAD, WRONGLY_REFUSED = RATINGS = 'good', 'bad', 'wrongly_refused'

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
class Drawn:
  """How the model drew a reply."""

  # Hex digest of the served weights and their config (`load.digest`); '' where
  # the server does not know it.
  model: str
  build: str  # The version of kaiju_jax.
  seed: int  # The seed of the sampling noise.
  temperature: float  # See `sampling.Sampling`, also for the following.
  top_k: int = 0  # The number of likeliest tokens kept; 0 for all.
  top_p: float = 1.0  # Their probability; 1 for all.
  min_p: float = 0.0  # The least fraction of the likeliest token's probability.
  # The penalty of tokens seen before; 1 for none.
  repetition_penalty: float = 1.0
  # Whether a guided beam search found the reply; the fields of sampling then
  # say nothing.
  guided: bool = False
  # Further fields of `Sampling`, where they were not the default's, as JSON.
  others: dict[str, Any] = dataclasses.field(default_factory=dict)

  def fields(self) -> dict[str, Any]:
    """Returns all as JSON, without `others` where older servers need none."""
    found = dataclasses.asdict(self)
    if not self.others:
      del found['others']
    return found


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
  drawn: Drawn | None = None


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


def check_rating(value: object) -> str | None:
  """Returns a rating, or None, which withdraws one; else a ValueError."""
  if value is not None and value not in RATINGS:
    raise ValueError(
      f'rating={card_fields.abbreviate(value)}: must be one of'
      f' {", ".join(RATINGS)}, or null, which withdraws it.'
    )
  return value
