"""Rate limits per owner: requests and text per minute, and streams at once.

A token bucket holds the requests that may come at once, and fills at its rate.
It is stored as one number, the time at which it will be full. A full bucket
equals a missing one, so idle owners need no entry. Tables are bounded, and
drop the least recently used entry.

Text is counted in bytes before it is parsed, and in prompt tokens once it is
encoded. One request may take more than its owner's buckets hold, because a
picture may be as large as a minute's chats; the next request is then refused
until they are positive again.

Nothing here is thread-safe: all of it runs in the server's event loop.
"""

import collections
from collections.abc import Callable
from collections.abc import Hashable
import dataclasses
import ipaddress
import math
import time
from typing import Self

from kaiju_jax.serving.http import errors

# Seconds; a shorter wait is a rounding error of the clock.
_NOTHING = 1e-6
# Retry-After, in seconds, where all slots are taken (our guess).
_STREAM = 5.0
# The requests that may come at once are those of a minute divided by this (our
# guess).
_BURST = 4
# The bytes and prompt tokens of a minute are these times its requests (our
# guess).
_BYTES, _TOKENS = 2**18, 2**14


@dataclasses.dataclass(frozen=True)
class Rate:
  """The rate limits of one owner."""

  requests: int = 60  # The requests per minute.
  streams: int = 4  # The answers that may be written at once.

  def __post_init__(self) -> None:
    for name in ('requests', 'streams'):
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f'{name}={value!r}: must be an integer from 1 on.')

  @property
  def burst(self) -> int:
    """Requests that may come at once: those of 15 seconds (our guess)."""
    return math.ceil(self.requests / _BURST)

  @property
  def bytes(self) -> int:
    """Bytes of requests' bodies per minute."""
    return self.requests * _BYTES

  @property
  def tokens(self) -> int:
    """Tokens of prompts per minute."""
    return self.requests * _TOKENS


# The local user's. It stops only a program that runs out of control.
LOCAL = Rate(6000, 64)


class Buckets:
  """Token buckets by key, of which only those in use are stored."""

  def __init__(
    self, most: int = 10_000, clock: Callable[[], float] = time.monotonic
  ):
    """Starts with all buckets full.

    Args:
      most: the most buckets that are stored.
    """
    self._most = most
    self._clock = clock
    # The time at which a bucket is full, by key; the least recently used first.
    self._full: dict[Hashable, float] = {}

  def __len__(self) -> int:
    return len(self._full)

  def take(self, key: Hashable, per_minute: float, burst: int) -> float:
    """Takes one unit from a bucket; returns the seconds until there is one.

    Args:
      per_minute: how many units flow in per minute.
      burst: how many units the bucket holds when full.
    """
    now, gap = self._clock(), 60 / per_minute
    full = max(self._full.get(key, now), now) + gap
    wait = full - now - burst * gap
    if wait > _NOTHING:
      return wait
    self._hold(key, full)
    return 0.0

  def spend(self, key: Hashable, per_minute: float, count: int) -> None:
    """Takes `count` units from a bucket, even more than it holds."""
    now = self._clock()
    full = max(self._full.get(key, now), now) + count * 60 / per_minute
    self._hold(key, full)

  def wait(self, key: Hashable, per_minute: float, burst: int) -> float:
    """Returns the seconds until a bucket is not empty; 0.0 if it is not."""
    now = self._clock()
    wait = self._full.get(key, now) - now - burst * 60 / per_minute
    return wait if wait > _NOTHING else 0.0

  def _hold(self, key: Hashable, full: float) -> None:
    self._full.pop(key, None)
    self._full[key] = full
    if len(self._full) > self._most:
      del self._full[next(iter(self._full))]


class Slots:
  """Counts things that happen at once, in total and per key."""

  def __init__(self, most: int, each: int):
    self.most = most  # The limit in total.
    self.each = each  # The limit per key.
    self._counts: collections.Counter[Hashable] = collections.Counter()
    self.taken: int = 0  # The slots taken now.

  def take(self, key: Hashable, each: int | None = None) -> bool:
    """Takes a slot, if one is free; `each` replaces the limit per key."""
    each = self.each if each is None else each
    if self.taken >= self.most or self._counts[key] >= each:
      self._forget(key)
      return False
    self.taken += 1
    self._counts[key] += 1
    return True

  def is_spent(self, key: Hashable) -> bool:
    """Returns whether a key has as many slots as one key may have."""
    return self._counts.get(key, 0) >= self.each

  def free(self, key: Hashable) -> None:
    """Returns a slot that `take` took."""
    self.taken -= 1
    self._counts[key] -= 1
    self._forget(key)

  def _forget(self, key: Hashable) -> None:
    if not self._counts[key]:
      del self._counts[key]


class Slot:
  """A taken slot, which the first `close` frees and later ones do not."""

  def __init__(self, slots: Slots, key: Hashable):
    self._slots: Slots | None = slots
    self._key = key

  def close(self) -> None:
    """Frees the slot."""
    slots, self._slots = self._slots, None
    if slots is not None:
      slots.free(self._key)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


class Limits:
  """The rate limits of one server's owners: 429 with Retry-After."""

  def __init__(
    self,
    rate: Rate = Rate(),
    streams: int = 64,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts with all buckets full and all slots free.

    Args:
      rate: the limits of owners whose token sets none.
      streams: the most answers of all owners together at once.
    """
    self._rate = rate
    self._requests = Buckets(clock=clock)
    self._texts = Buckets(clock=clock)
    self._prompts = Buckets(clock=clock)
    self._streams = Slots(streams, rate.streams)

  def request(self, owner: str, rate: Rate | None = None) -> None:
    """Counts a request against its owner's limit."""
    _take(self._requests, owner, rate or self._rate, 'requests')

  def text(self, owner: str, size: int, rate: Rate | None = None) -> None:
    """Counts the bytes of a request's body, before it is parsed."""
    rate = rate or self._rate
    for buckets, most, what in (
      (self._texts, rate.bytes, 'bytes of requests'),
      (self._prompts, rate.tokens, 'tokens of prompts'),
    ):
      wait = buckets.wait(owner, most, most // _BURST)
      if wait:
        raise errors.rate_limited(
          f'{most:,} {what} per minute are allowed: ask again in {wait:.1f} s.',
          wait,
        )
    self._texts.spend(owner, rate.bytes, size)

  def prompt(self, owner: str, tokens: int, rate: Rate | None = None) -> None:
    """Counts the tokens of a prompt, for `text` to refuse later requests."""
    self._prompts.spend(owner, (rate or self._rate).tokens, tokens)

  def stream(self, owner: str, rate: Rate | None = None) -> Slot:
    """Takes a slot for an answer; the caller closes it when the answer ends."""
    rate = rate or self._rate
    if self._streams.taken >= self._streams.most:
      raise errors.busy(
        f'{self._streams.most} answers are being written, as many as may.',
        _STREAM,
      )
    if not self._streams.take(owner, rate.streams):
      raise errors.rate_limited(
        f'{rate.streams} answers at once are allowed: end one first.', _STREAM
      )
    return Slot(self._streams, owner)


class Failures:
  """Limits failed authentications per address.

  A token of 256 bits cannot be guessed. The limit keeps a broken client from
  filling the log, and tells it that it is broken. A valid token still passes,
  so that clients that share an address do not lock each other out.
  """

  def __init__(
    self,
    per_minute: int = 30,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._rate = Rate(per_minute)
    self._buckets = Buckets(clock=clock)

  def note(self, address: str) -> None:
    """Counts a failure."""
    what, remedy = 'failed authentications', ', with a valid token'
    _take(self._buckets, network(address), self._rate, what, remedy)


def _take(
  buckets: Buckets, key: Hashable, rate: Rate, what: str, remedy: str = ''
) -> None:
  """Takes a unit from a bucket; refuses (429) if there is none."""
  wait = buckets.take(key, rate.requests, rate.burst)
  if wait:
    raise errors.rate_limited(
      f'{rate.requests} {what} per minute are allowed: ask again in'
      f' {wait:.1f} s{remedy}.',
      wait,
    )


def network(address: str) -> str:
  """Returns the network that counts as one client.

  It is an IPv4 address, or the first 64 bits of an IPv6 address: one client may
  have all addresses that begin with them.
  """
  try:
    parsed = ipaddress.ip_address(address)
  except ValueError:
    return address
  if isinstance(parsed, ipaddress.IPv4Address):
    return str(parsed)
  if parsed.ipv4_mapped is not None:
    return str(parsed.ipv4_mapped)
  return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
