"""A state machine of a fleet: each text is that of its request alone.

`Life.may_take` says who may be asked, `fake_device` what each text is.
"""

import asyncio
import collections
import dataclasses
import functools
import random
import types

from hypothesis import stateful
from hypothesis import strategies
import numpy as np

from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout
from kaiju_jax.serving.routing import router as router_lib
from tests.decoding import fake_device
from tests.decoding import fake_engine
from tests.decoding import machines
from tests.serving.routing import fleet as fleet_lib

NAMES, BUILDS = ('r0', 'r1', 'r2', 'r3'), ('b1', 'b1', 'b2', 'b2')
MAX_LOSSES = 2
# What may happen to a replica that is asked for a text.
SURPRISES = 'dies', 'dies late', 'is removed'
# What must have happened, or the test says too little.
OUTCOMES = (
  *('length', 'stop_token', 'left', 'refused', 'drained', 'moved', 'lost'),
  *('Busy', 'Lost', 'ended by drains', 'removed as it moved'),
)
seeds, flags = strategies.integers(0, 2**32 - 1), strategies.booleans()
names = strategies.sampled_from(NAMES)


class Worker(worker_lib.Worker):
  """A worker whose rounds a test runs, in the event loop's thread."""

  def __init__(self, name, build, life):
    engine = fleet_lib.Light(is_judged=True, extra=4, pages=60)
    super().__init__(engine)
    self.name, self.build, self.life = name, build, life
    self.share, self.is_closing, self.is_over = 1.0, False, False
    self.surprise, self.has_drained = None, False
    self.counts = rollout.RequestCounts()
    # There is no thread that would run them.
    self._commands = types.SimpleNamespace(put=self.do)

  @property
  def is_alive(self):
    return self.error is None and not self.is_over

  @property
  def is_open(self):
    return self.is_alive and not self.is_closing and not self.is_removed

  @property
  def is_removed(self):
    return self.life.workers[self.name] is not self

  def do(self, command):
    if self.is_alive:
      command()
      self._publish()

  def die(self):
    self.error = fleet_lib.Killed('a test killed it.')
    self._end()

  def stop(self):
    if self.is_alive:
      self.is_over = True
      self._end()

  def step(self):
    if self.is_alive and not self.engine.is_idle:
      try:
        self._round()
      except fleet_lib.Killed as error:
        self.error = error
        self._end()

  async def submit(self, *requests):
    self.life.check_place(self, requests)
    surprise, self.surprise = self.surprise, None
    if surprise:
      self.life.seen[surprise] += 1
      await asyncio.sleep(0)
    if surprise == 'is removed':
      self.life.remove(self)
    elif surprise == 'dies':
      self.die()
    streams = await super().submit(*requests)
    if surprise == 'dies late':
      self.die()
      raise self._stopped()
    self.life.note_accepted(self, requests)
    return streams


@dataclasses.dataclass(eq=False)
class Text:
  """What a client reads, and who has been asked for it."""

  request: request_lib.Request
  stream: object = None
  events: list = dataclasses.field(default_factory=list)
  tried: list = dataclasses.field(default_factory=list)
  place: Worker | None = None
  # Those that have had it.
  held: list = dataclasses.field(default_factory=list)
  losses: int = 0  # In succession.
  is_moved: bool = False
  is_removed: bool = False

  @property
  def key(self):
    return self.request.owner, self.request.conversation


def draw_request(rng, seed):
  """Returns a request of any kind, which may share its prompt with others."""
  prompt = np.random.default_rng(rng.randrange(7)).integers(
    0, fake_device.VOCABULARY, rng.randint(1, 30)
  )
  # The seed is the text's own, and tells it from all others.
  request = request_lib.Request(
    prompt,
    rng.randint(1, 15),
    sampling.Sampling(seed=seed),
    owner=f'owner {rng.randrange(3)}',
    priority=rng.randrange(3),
  )
  changes = {}
  if rng.random() < 0.6:
    changes = {
      'conversation': f'talk {rng.randrange(6)}',
      'cache_salt': f'salt {rng.randrange(2)}',
      'shared': min(4, len(prompt)),
    }
  kind = rng.randrange(4)
  if kind == 0:
    changes['guided'] = request_lib.Guide(1)
  elif kind == 1:
    changes['scores_prompt'] = True
  elif kind == 2:
    tokens, _ = fake_device.expected(request)
    changes['stop_tokens'] = (tokens[-1], tokens[len(tokens) // 2])
  return dataclasses.replace(request, **changes)


def check_judged(request, events):
  """Each token came with the head's scores of the text up to it."""
  text, scores = fake_device.appended(0, request.tokens), None
  for event in events:
    text = fake_device.appended(text, [event.token])
    if event.reason != 'stop_token':
      scores = fake_device.scores(text)
    elif request.guided is not None:
      continue
    assert event.scores == scores


def check_whole(request, result):
  """Holds a whole text's result against what its request says."""
  tokens, reason = fake_device.expected(request)
  assert (result.tokens.tolist(), result.reason) == (tokens, reason)
  assert result.log_probabilities.tolist() == [-float(x) for x in tokens]
  judged, text = [], 0
  for token in request.tokens:
    text = fake_device.appended(text, [token])
    judged.append(fake_device.scores(text))
  assert result.prompt_scores == tuple(np.max(judged, axis=0))
  if request.scores_prompt:
    given = result.prompt_log_probabilities
    assert given.tolist() == [-float(x) for x in request.tokens[1:]]


class Life(stateful.RuleBasedStateMachine):
  """Four replicas of two builds under one router, and its clients."""

  def __init__(self, seen):
    super().__init__()
    self.seen, self.runner = seen, asyncio.Runner()
    settings = router_lib.Settings(
      load_max_age_s=float('inf'), max_losses=MAX_LOSSES, busy_timeout_s=0.0
    )
    self.router = router_lib.Router(fleet_lib.SECRET, settings)
    # The latest of each name; of an older one of a name, None.
    self.workers, self.all, self.open = {}, [], []
    self.texts, self.talks, self.gone = {}, {}, set()
    self.builds = {}
    for name, build in zip(NAMES, BUILDS):
      self.join(name, build)

  def may_take(self, text, tried):
    """Returns who may be asked for a text: by affinity, build and share."""
    left = [x for x in self.workers.values() if x and x.is_open]
    left = [x for x in left if x not in tried]
    known = self.talks.get(text.key)
    build = self.builds.get(known)
    if text.events:
      build = text.place.build
    same = [x for x in left if x.build == build]
    if known in [x.name for x in same]:
      return [x for x in same if x.name == known]
    taking = [x for x in same if x.share] or same
    if taking or text.events:
      return taking
    return [x for x in left if x.share]

  def run(self, main):
    """Runs a coroutine, and the engines' rounds beside it."""

    async def beside():
      task = asyncio.ensure_future(main)
      for count in range(6_000):
        if task.done() and asyncio.all_tasks() == {asyncio.current_task()}:
          break
        if not task.done():
          for one in self.all:
            one.step()
        # Some of it waits for a thread, which a busy machine runs late.
        await asyncio.sleep(0 if count < 3_000 else 0.005)
      assert task.done()
      return await task

    return self.runner.run(beside())

  @stateful.rule(name=names, build=strategies.sampled_from(BUILDS))
  def join(self, name, build):
    """Starts a replica where none of its name is left, or only a dead one."""
    if (former := self.workers.get(name)) and former.is_alive:
      return
    self.workers[name] = one = Worker(name, build, self)
    self.all.append(one)
    self.builds[name] = build
    self.router.add(replica_lib.LocalReplica(name, one, build, fleet_lib.NAMES))

  def remove(self, one):
    self.workers[one.name] = None
    self.router.remove(one.name).stop()

  @stateful.rule(name=names)
  def leave(self, name):
    """Removes one that has been drained, or is dead."""
    one = self.workers[name]
    if one and not one.is_open:
      self.remove(one)

  @stateful.rule(name=names, rounds=strategies.integers(0, 15), loses=flags)
  def kill(self, name, rounds, loses):
    if one := self.workers[name]:
      one.engine.fuse, one.engine.loses = rounds, loses

  @stateful.rule()
  def kill_all(self):
    for name in NAMES:
      self.kill(name, 0, False)

  @stateful.rule(name=names, what=strategies.sampled_from(SURPRISES))
  def surprise(self, name, what):
    if one := self.workers[name]:
      one.surprise = what

  @stateful.rule(name=names)
  def drain(self, name):
    if one := self.workers[name]:
      one.is_closing = True
      running = len(one.engine.state.sequences()) * one.is_alive
      ended = self.run(self.router.drain_one(name, 0.0))
      # A round before it may have ended the replica.
      one.has_drained |= one.is_alive
      assert ended <= running
      self.seen['ended by drains'] += ended

  @stateful.rule(name=names, share=strategies.integers(0, 1))
  def set_share(self, name, share):
    if one := self.workers[name]:
      one.share = share
      self.router.set_share(name, share)

  @stateful.rule(name=names, queue=strategies.sampled_from([0, None]))
  def refuse(self, name, queue):
    if one := self.workers[name]:
      one.engine.limits = admission.Limits(queue=queue)

  def check_place(self, one, requests):
    """Whoever is asked may be; nobody else has what it is asked for."""
    for request in requests:
      text = self.texts[request.sampling.seed]
      assert one in self.may_take(
        self.texts[requests[0].sampling.seed], text.tried
      )
      text.tried.append(one)
      drawn = [event.token for event in text.events]
      assert list(request.drawn) == drawn
      plain = dataclasses.replace(request, drawn=())
      assert vars(plain) == vars(text.request)
      assert text.place is None or not text.place.is_open

  def note_accepted(self, one, requests):
    for request in requests:
      text = self.texts[request.sampling.seed]
      if text.place is not None:
        self.note_loss(text)
        self.seen['moved'] += 1
        text.is_moved = True
        assert text.losses <= MAX_LOSSES
      text.place = one
      # One that was busy may be asked again when the text moves on.
      text.tried = [*text.held, one]
      text.held.append(one)
    if text.request.conversation is not None:
      self.talks[text.key] = one.name

  def note_loss(self, text):
    if not text.place.is_alive and not text.place.has_drained:
      text.losses += 1
      text.place.counts += rollout.RequestCounts(1, 1)

  @stateful.rule(seed=seeds, count=strategies.sampled_from([1, 1, 1, 3]))
  def submit(self, seed, count):
    """Submits the choices of an answer: one replica has all of them."""
    if len(self.open) > 9:
      return
    rng, first = random.Random(seed), len(self.texts)
    request = draw_request(rng, first)
    for number in range(count):
      settings = sampling.Sampling(seed=first + number)
      own = dataclasses.replace(request, sampling=settings)
      self.texts[first + number] = Text(own)
    made = [self.texts[first + number] for number in range(count)]
    self.gone.discard(made[0].key)
    try:
      streams = self.run(self.router.submit(*(x.request for x in made)))
    except (request_lib.Busy, worker_lib.Stopped) as error:
      text = made[0]
      assert not self.may_take(text, text.tried)
      refused = [x for x in text.tried if x.is_alive]
      assert isinstance(error, request_lib.Busy) == bool(refused)
      self.seen[type(error).__name__] += 1
      return
    assert len({x.place for x in made}) == 1
    for text, stream in zip(made, streams, strict=True):
      text.stream = stream
      self.open.append(text)

  @stateful.rule(seed=seeds, count=strategies.integers(1, 20))
  def read(self, seed, count):
    if not self.open:
      return
    text = self.open[seed % len(self.open)]
    for _ in range(count):
      if text not in self.open:
        return
      self.read_one(text)

  def read_one(self, text):
    tokens, _ = fake_device.expected(text.request)
    try:
      event = self.run(anext(text.stream))
    except StopAsyncIteration:
      result = text.stream.result()
      assert result.tokens.tolist() == [x.token for x in text.events]
      if result.reason == 'drained':
        assert not self.may_take(text, text.tried) and text.place.has_drained
      else:
        check_whole(text.request, result)
      self.end(text, result.reason)
    except worker_lib.Stopped:
      self.note_loss(text)
      cannot = not self.may_take(text, text.tried)
      assert cannot or text.losses > MAX_LOSSES
      self.end(text, 'lost' if cannot else 'given up')
    else:
      text.events.append(event)
      text.losses = 0
      assert [x.token for x in text.events] == tokens[: len(text.events)]

  @stateful.rule(seed=seeds, is_refused=flags)
  def go(self, seed, is_refused):
    """A client leaves, or its text is refused."""
    if self.open:
      text = self.open[seed % len(self.open)]

      async def leave():
        text.stream.refuse() if is_refused else text.stream.cancel()
        return (await fleet_lib.read(text.stream))[0]

      text.events += self.run(leave())
      tokens, _ = fake_device.expected(text.request)
      assert [x.token for x in text.events] == tokens[: len(text.events)]
      self.end(text, 'refused' if is_refused else 'left')

  def end(self, text, how):
    self.open.remove(text)
    self.seen[how] += 1
    check_judged(text.request, text.events)
    if how not in ('lost', 'given up'):
      text.place.counts += rollout.RequestCounts(1, 0, how == 'refused')
    if text.is_removed and text.is_moved:
      self.talks.pop(text.key, None)
      self.seen['removed as it moved'] += 1

  @stateful.rule(number=strategies.integers(0, 99))
  def forget(self, number):
    """Removes a conversation that was asked for of late."""
    late = [x.key for x in self.open if x.key[1]]
    if number % 4 == 0 or not late:
      late = [x.key for x in self.texts.values() if x.key[1]][-9:]
    if not late:
      return
    key = late[number % len(late)]
    wanted = forgetting.Forget(conversations=(key,))
    self.talks.pop(key, None)
    self.gone.add(key)
    for text in self.open:
      text.is_removed |= text.key == key
    try:
      self.run(self.router.forget(wanted))
    except worker_lib.Stopped:
      assert not any(x and x.is_alive for x in self.workers.values())

  @stateful.initialize(seed=seeds, steps=strategies.integers(40, 120))
  def live(self, seed, steps):
    """Begins with many of these, as rules alone make short lives."""
    rng = random.Random(seed)
    for _ in range(steps):
      name, number = rng.choice(NAMES), rng.randrange(99)
      moves = (
        (12, self.submit, number, rng.choice([1, 1, 1, 3])),
        (12, self.read, number, rng.randint(1, 12)),
        (2, self.go, number, rng.random() < 0.5),
        (4, self.forget, number),
        (8, self.join, name, rng.choice(BUILDS)),
        (4, self.leave, name),
        (3, self.drain, name),
        (4, self.kill, name, rng.choice([0, 0, 1, 9]), rng.random() < 0.5),
        (1, self.kill_all),
        (2, self.surprise, name, rng.choice(SURPRISES)),
        (2, self.set_share, name, rng.choice([0, 1, 1])),
        (2, self.refuse, name, rng.choice([0, None, None])),
      )
      (move,) = rng.choices(moves, [x[0] for x in moves])
      move[1](*move[2:])
      self.is_consistent()

  @stateful.invariant()
  def is_consistent(self):
    told = {x.name: x for x in self.router.describe()}
    held = {name: x for name, x in self.workers.items() if x}
    assert told.keys() == held.keys()
    for name, one in held.items():
      assert self.router.count_requests(name) == one.counts
      assert told[name].is_alive == one.is_alive
      assert told[name].share == one.share
    assert self.router.is_alive == any(x.is_open for x in held.values())

  def teardown(self):
    """Lets all end; a removed conversation is in no cache."""
    while self.open:
      self.read_one(self.open[0])
    assert not any(x.load for x in self.router.describe())
    cached = self.run(self.router.list_cached())
    held = {x.conversation for texts in cached.values() for x in texts}
    assert not held & {fleet_lib.NAMES.conversation(*x) for x in self.gone}
    for one in self.all:
      one.stop()
      one.engine.clear()
      assert fake_engine.nothing_is_left(one.engine)
    self.runner.close()


def test_any_life_of_a_fleet_gives_each_client_its_text():
  seen, settings = collections.Counter(), machines.quick(Life, 30, 8).settings
  life = functools.partial(Life, seen)
  stateful.run_state_machine_as_test(life, settings=settings)
  assert min(seen[x] for x in (*SURPRISES, *OUTCOMES)) > 0, seen
