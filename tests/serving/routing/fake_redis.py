"""A Redis in memory: the commands that a shared table sends, and outages."""

from kaiju_jax.serving.stores import characters


class FakeRedis:
  """A server; several links may reach it.

  Attributes:
    is_away: whether calls fail.
    sets: sorted sets by key.
    values: strings by key.
  """

  def __init__(self):
    self.is_away = False
    self.sets: dict[str, dict[bytes, float]] = {}
    self.values: dict[str, bytes] = {}

  def run(self, work):
    """Stands for `redis_link.Link.run`."""
    if self.is_away:
      raise characters.Unavailable('redis', 'the store is away')
    return work(self)

  def close(self):
    pass

  def flushall(self):
    self.sets.clear()
    self.values.clear()

  def get(self, key):
    return self.values.get(key)

  def set(self, key, value, nx=False):
    if not (nx and key in self.values):
      self.values[key] = value.encode()

  def zadd(self, key, scores, gt=False):
    held = self.sets.setdefault(key, {})
    for member, score in scores.items():
      if not gt or score > held.get(member, -1):
        held[member] = score

  def zrevrangebyscore(self, key, most, least, begin, count, withscores):
    assert most == '+inf' and withscores
    held = sorted(self.sets.get(key, {}).items(), key=lambda x: (-x[1], x[0]))
    return [x for x in held if x[1] >= least][begin : begin + count]

  def zremrangebyscore(self, key, least, most):
    assert least == '-inf' and most[0] == '('
    held = self.sets.get(key, {})
    for member in [x for x, y in held.items() if y < float(most[1:])]:
      del held[member]

  def zremrangebyrank(self, key, first, last):
    held = self.sets.get(key, {})
    ranked = sorted(held, key=lambda x: (held[x], x))
    for member in ranked[first : len(ranked) + last + 1]:
      del held[member]

  def pexpire(self, key, milliseconds):
    pass
