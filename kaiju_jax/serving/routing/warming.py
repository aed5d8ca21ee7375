"""Fills a new replica's cache with the prefixes of public characters.

    ranked = rank(prefixes, held, names)
    await warm(replica, ranked)

A replica that begins cold would prefill its first sessions' characters again,
each while somebody waits. So the prefixes that the other replicas use most are
run on it while its share is 0. They are those of public characters alone: a
text of an owner is prefilled where that owner talks, and nowhere else.
"""

import asyncio
import collections
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.serving.routing import pseudonyms
from kaiju_jax.serving.routing import replica as replica_lib

# Seconds until a replica is asked again that takes no more; our guess.
_PAUSE = 0.5


class Prefix(NamedTuple):
  """A public character's prefix."""

  salt: str  # Its cache salt, which holds no owner.
  tokens: np.ndarray  # int32 [n].


def rank(
  prefixes: Iterable[Prefix],
  held: Iterable[Sequence[replica_lib.CachedText]],
  names: pseudonyms.Pseudonyms,
) -> list[Prefix]:
  """Returns the prefixes that replicas use, the most used first.

  Args:
    prefixes: of public characters.
    held: the texts of each replica's cache; each counts for its prefix.
    names: of the fleet.
  """
  uses = collections.Counter(one.salt for texts in held for one in texts)
  found = [(uses[names.salt(one.salt)], one) for one in prefixes]
  found.sort(key=lambda pair: -pair[0])
  return [one for count, one in found if count]


async def warm(replica: replica_lib.Replica, prefixes: Iterable[Prefix]) -> int:
  """Prefills prefixes one after another; returns how many.

  What fills the cache too far is the replica's to evict, so give no more than
  fit, the most used first.

  Raises:
    Lost: the replica is gone.
  """
  count = 0
  for prefix in prefixes:
    request = request_lib.Request(
      prefix.tokens,
      1,
      sampling.Sampling(temperature=0),
      shared=len(prefix.tokens),
      cache_salt=prefix.salt,
    )
    while True:
      try:
        (stream,) = await replica.submit(request)
        break
      except request_lib.Busy:
        await asyncio.sleep(_PAUSE)
    async for _ in stream:
      pass
    count += 1
  return count
