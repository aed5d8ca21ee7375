"""The places of a router's replicas: shares, loads, and who serves whom.

A place is the number that policies know a replica by. A share says to which
part of the new conversations it is open; one that has begun stays where it is,
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
from kaiju_jax.serving.routing import names as names_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout


@dataclasses.dataclass(eq=False)
class Place:
  """One place."""

  number: int  # Its index, for policies.
  # None once it was removed; then the place waits for another.
  replica: replica_lib.Replica | None
  build: str  # Of its replica, or of the last one.
  share: float = 1.0  # 0…1, to which part of new conversations it is open.
  is_closing: bool = False  # Whether its replica drains.
  # Its replica's latest account; None before the first.
  state: replica_lib.State | None = None
  # The requests that have ended here.
  tally: rollout.Tally = dataclasses.field(default_factory=rollout.Tally)
  charged: float = 0.0  # The sum of all charges.
  # What its replica told, and the charges that were in it.
  _told: float = 0.0
  _known: float = 0.0

  @property
  def is_open(self) -> bool:
    """Whether its replica takes requests, as far as is known here."""
    taken = self.replica is not None and not self.is_closing
    return taken and self.replica.is_alive

  @property
  def load(self) -> float:
    """What its replica told, and what was submitted or has ended since."""
    return max(self._told + self.charged - self._known, 0.0)

  @property
  def running(self) -> int:
    """The sequences of its replica by its latest account; 0 if it is dead."""
    if self.state is None or self.replica is None or not self.replica.is_alive:
      return 0
    return self.state.running

  def charge(self, load: float) -> None:
    """Adds to its load; negative for what has ended."""
    self.charged += load

  def take_state(self, state: replica_lib.State, charged: float) -> None:
    """Takes in its replica's account, asked for when it had `charged` this."""
    self.state = state
    self._told, self._known = state.load, charged


class Places:
  """The places of one router.

  Args:
    names: of the fleet.
    policy: an index of `policies.NAMES`.
    sessions: the table's slots; one takes 24 bytes.
  """

  def __init__(
    self, names: names_lib.Names, policy: int, sessions: int = 2**16
  ):
    self.affinity = affinity_lib.Affinity(sessions)
    self._names = names
    self._policy = policy
    self._places: list[Place] = []
    self._table = self.affinity.table
    self._count = 0

  def __iter__(self) -> Iterator[Place]:
    """Yields the places that have a replica."""
    return (x for x in self._places if x.replica is not None)

  def add(self, replica: replica_lib.Replica, share: float) -> Place:
    """Gives a replica a place; a dead one of its name goes.

    Raises:
      ValueError: the share is not 0…1, or another replica has its name.
    """
    _check_share(share)
    for place in self:
      if place.replica.name == replica.name:
        if place.replica.is_alive:
          raise ValueError(
            f'name={replica.name!r}: another replica has it; remove that first.'
          )
        place.replica = None
    number = self.affinity.place(replica.name)
    made = Place(number, replica, replica.build, share)
    self._places[number : number + 1] = [made]
    return made

  def remove(self, name: str) -> replica_lib.Replica:
    """Takes a replica off its place, and returns it.

    Raises:
      ValueError: there is no such replica.
    """
    place = self.find(name)
    found, place.replica = place.replica, None
    self.affinity.remove(name)
    return found

  def find(self, name: str) -> Place:
    """Returns a replica's place.

    Raises:
      ValueError: there is no such replica.
    """
    for place in self:
      if place.replica.name == name:
        return place
    known = ', '.join(sorted(x.replica.name for x in self)) or 'none'
    raise ValueError(f'name={name!r}: must be a replica: {known}.')

  def set_share(self, name: str, share: float) -> None:
    """Sets to which part of new conversations a replica is open, 0…1.

    Raises:
      ValueError: the share is not 0…1, or there is no such replica.
    """
    _check_share(share)
    self.find(name).share = share

  def pick(
    self,
    request: request_lib.Request,
    build: str | None = None,
    without: Collection[Place] = (),
  ) -> Place | None:
    """Returns the place that serves a request; None if none may.

    Args:
      request: the request.
      build: on which its text began; None for a new one.
      without: places that were tried.
    """
    known = -1
    if request.conversation is None:
      # No table knows it; draws differ.
      session = self._count
    else:
      session = self._session(request.owner, request.conversation)
      known = int(policies.find(self._table, session))
    open_ = [x for x in self._places if x.is_open and x not in without]
    shares = self._shares(open_, build, known)
    found = policies.pick(
      names_lib.number(self._names.salt(request.cache_salt)) % 2**32,
      session,
      shares,
      np.array([x.load for x in self._places]),
      self._table,
      self._policy,
      self._count,
    )
    self._count += 1
    return None if found < 0 else self._places[found]

  def _shares(
    self, open_: Sequence[Place], build: str | None, known: int
  ) -> np.ndarray:
    """Returns each place's share for a text; `known` served it last, or −1."""
    shares = np.zeros(len(self._places))
    begun = build
    if build is None and 0 <= known < len(self._places):
      begun = self._places[known].build
    same = [x for x in open_ if x.build == begun]
    for place in same if build is not None or same else open_:
      shares[place.number] = place.share
    if same and not shares.any():
      # A build that takes nothing new still ends what began on it.
      shares[[x.number for x in same]] = 1.0
    if any(x.number == known for x in same):
      shares[known] = 1.0
    return shares

  def note(self, request: request_lib.Request, place: Place) -> None:
    """Notes which place serves a request's conversation."""
    if request.conversation is not None:
      session = self._session(request.owner, request.conversation)
      self.affinity.note(session, place.replica.name)

  def learn(self, place: Place, held: Sequence[replica_lib.Held]) -> None:
    """Notes the conversations in a replica's cache; the latest use counts."""
    now = time.time()
    self.affinity.merge([affinity_lib.of_held(place.replica.name, held, now)])

  def forget(self, owner: str, conversation: str) -> None:
    """Forgets who serves a conversation."""
    self.affinity.forget(self._session(owner, conversation))

  def _session(self, owner: str, conversation) -> int:
    return names_lib.number(self._names.conversation(owner, conversation))


def _check_share(share: float) -> None:
  if not 0 <= share <= 1:
    raise ValueError(f'share={share!r}: must be 0…1.')
