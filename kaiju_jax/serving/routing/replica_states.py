"""Each replica as a router knows it: share, load, conversations.

Policies address replicas by index. A replica's share is the part of the new
conversations that it takes; a conversation that has begun stays on its replica,
and on its build, whatever the shares (`affinity.py` has the table).
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import time

import numpy as np

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import affinity as affinity_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout


@dataclasses.dataclass(eq=False)
class ReplicaState:
  """What a router knows of one replica."""

  index: int  # In the arrays of `policies.pick`.
  # None once it was removed; then another replica may take the index.
  replica: replica_lib.Replica | None
  build: str  # Of the replica, or of the removed one.
  share: float = 1.0  # 0…1, the part of new conversations that it takes.
  is_closing: bool = False  # Whether it drains: it takes no requests.
  # As last polled; None before the first poll.
  status: replica_lib.Status | None = None
  # The requests that have ended here.
  ended: rollout.RequestCounts = dataclasses.field(
    default_factory=rollout.RequestCounts
  )
  # Load submitted by this router, less what has ended.
  charged: float = 0.0
  # The load that the replica reported, and `charged` at that time.
  _reported: float = 0.0
  _charged_then: float = 0.0

  @property
  def is_open(self) -> bool:
    """Whether the replica takes requests, as far as is known here."""
    has_one = self.replica is not None and not self.is_closing
    return has_one and self.replica.is_alive

  @property
  def load(self) -> float:
    """The replica's last reported load, adjusted by requests since."""
    return max(self._reported + self.charged - self._charged_then, 0.0)

  @property
  def running(self) -> int:
    """The sequences of the replica as last polled; 0 if it is dead."""
    if self.status is None or self.replica is None or not self.replica.is_alive:
      return 0
    return self.status.running

  def charge(self, load: float) -> None:
    """Adds submitted load; negative for load that has ended."""
    self.charged += load

  def update(self, status: replica_lib.Status, charged: float) -> None:
    """Takes a polled status; `charged` is that when the poll began."""
    self.status = status
    self._reported, self._charged_then = status.load, charged


class ReplicaStates:
  """The replicas of one router, and the affinity table.

  Methods that take a replica's name raise ValueError where there is none.

  Args:
    pseudonyms: of the fleet.
    policy: an index of `policies.NAMES`.
    sessions: the table's slots; one takes 24 bytes.
  """

  def __init__(
    self,
    pseudonyms: replica_lib.Pseudonyms,
    policy: int,
    sessions: int = 2**16,
  ):
    self.affinity: affinity_lib.Affinity = affinity_lib.Affinity(
      sessions
    )  # The table.
    self._pseudonyms = pseudonyms
    self._policy = policy
    self._states: list[ReplicaState] = []
    self._table = self.affinity.table
    self._count = 0

  def __iter__(self) -> Iterator[ReplicaState]:
    """Yields the states that have a replica."""
    return (x for x in self._states if x.replica is not None)

  def add(self, replica: replica_lib.Replica, share: float) -> ReplicaState:
    """Gives a replica an index; replaces a dead one with its name.

    Raises:
      ValueError: the share is not 0…1, or another replica has its name.
    """
    _check_share(share)
    for state in self:
      if state.replica.name == replica.name:
        if state.replica.is_alive:
          raise ValueError(
            f'name={replica.name!r}: another replica has it; remove that first.'
          )
        state.replica = None
    index = self.affinity.index_of(replica.name)
    made = ReplicaState(index, replica, replica.build, share)
    self._states[index : index + 1] = [made]
    return made

  def remove(self, name: str) -> replica_lib.Replica:
    """Frees a replica's index, and returns the replica."""
    state = self.find(name)
    found, state.replica = state.replica, None
    self.affinity.remove(name)
    return found

  def find(self, name: str) -> ReplicaState:
    """Returns a replica's state."""
    for state in self:
      if state.replica.name == name:
        return state
    known = ', '.join(sorted(x.replica.name for x in self)) or 'none'
    raise ValueError(f'name={name!r}: must be a replica: {known}.')

  def set_share(self, name: str, share: float) -> None:
    """Sets the part of new conversations that a replica takes, 0…1.

    Raises:
      ValueError: the share is not 0…1, or there is no such replica.
    """
    _check_share(share)
    self.find(name).share = share

  def pick(
    self,
    request: request_lib.Request,
    build: str | None = None,
    without: Collection[ReplicaState] = (),
  ) -> ReplicaState | None:
    """Returns the replica that serves a request; None if none may.

    Args:
      build: on which its text began; None for a new one.
    """
    known = -1
    if request.conversation is None:
      # The table does not know it; draws differ.
      session = self._count
    else:
      session = self._session(request.owner, request.conversation)
      known = int(policies.find(self._table, session))
    open_ = [x for x in self._states if x.is_open and x not in without]
    shares = self._shares(open_, build, known)
    salt = self._pseudonyms.salt(request.cache_salt)
    found = policies.pick(
      replica_lib.number(salt) % 2**32,
      session,
      shares,
      np.array([x.load for x in self._states]),
      self._table,
      self._policy,
      self._count,
    )
    self._count += 1
    return None if found < 0 else self._states[found]

  def _shares(
    self, open_: Sequence[ReplicaState], build: str | None, known: int
  ) -> np.ndarray:
    """Returns each index's share for a text; `known` served it last, or −1."""
    shares = np.zeros(len(self._states))
    began_on = build
    if build is None and 0 <= known < len(self._states):
      began_on = self._states[known].build
    same = [x for x in open_ if x.build == began_on]
    for state in same if build is not None or same else open_:
      shares[state.index] = state.share
    if same and not shares.any():
      # A build that takes nothing new still ends what began on it.
      shares[[x.index for x in same]] = 1.0
    if any(x.index == known for x in same):
      shares[known] = 1.0
    return shares

  def note(self, request: request_lib.Request, state: ReplicaState) -> None:
    """Notes which replica serves a request's conversation, if it still does."""
    if request.conversation is not None and state.replica is not None:
      session = self._session(request.owner, request.conversation)
      self.affinity.note(session, state.replica.name)

  def learn(
    self, state: ReplicaState, cached: Sequence[replica_lib.CachedText]
  ) -> None:
    """Notes the conversations in a replica's cache; the latest use counts."""
    rows = affinity_lib.rows_of_cached(state.replica.name, cached, time.time())
    self.affinity.merge([rows])

  def forget(self, owner: str, conversation: str) -> None:
    """Forgets which replica serves a conversation."""
    self.affinity.forget(self._session(owner, conversation))

  def _session(self, owner: str, conversation) -> int:
    """Returns the number by which the table knows a conversation."""
    return replica_lib.number(
      self._pseudonyms.conversation(owner, conversation)
    )


def _check_share(share: float) -> None:
  if not 0 <= share <= 1:
    raise ValueError(f'share={share!r}: must be 0…1.')
