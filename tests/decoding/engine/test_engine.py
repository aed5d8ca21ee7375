"""Sequences in an engine over a model: each has the bits that it has alone.

In the reference mode a token's logits are those of the forward pass, however
its text was split into calls and whatever was resumed. So any life of sequences
is held against each request's run alone, in an engine that reuses nothing.
"""

import collections
import dataclasses
import functools
from unittest import mock

from hypothesis import stateful
from hypothesis import strategies
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests import meshes
from tests.decoding import fake_engine
from tests.decoding import machines
from tests.decoding import mesh_lives
from tests.decoding import toys
from tests.decoding.engine import lives

Request, Sampling = request_lib.Request, sampling.Sampling
ROWS, LENGTH, PAGE, CHUNK = 4, 48, 4, 8
CONFIG = toys.small()
# Of 12 and 4 pages in each row.
PAGES = {'global': 26, 'local': 14}
# Of lives on a mesh; each has so many steps.
LIVES, STEPS = 1000, 3


class Alone:
  """One decoder for all engines, and what each request gets alone."""

  def __init__(self, mode, tensor=1, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    self.decoder = decoder_lib.Decoder(
      toys.drawn(config),
      config,
      rows=ROWS,
      length=LENGTH,
      page=PAGE,
      page_counts=PAGES,
      mode=mode,
      mesh=placement.make(tensor),
    )
    # What is compiled is for all.
    self._rounds = engine_lib.Engine(self.decoder, chunk=CHUNK).rounds
    self._found = {}

  def engine(self, **options):
    """Returns an engine without points."""
    assert not self.decoder.account.open_rows
    self.forget()
    with mock.patch.object(compiled, 'Rounds', lambda *_: self._rounds):
      return engine_lib.Engine(self.decoder, chunk=CHUNK, **options)

  def forget(self):
    tree = self.decoder.account.tree
    for point in list(tree.points()):
      tree.drop(point)

  def result(self, request):
    """Returns what a request gets with nobody beside it and nothing before."""
    key = (
      tuple(map(int, request.tokens)),
      request.max_tokens,
      request.sampling,
      request.scores_prompt,
    )
    if key not in self._found:
      engine = self.engine(batch_invariant=True)
      one = engine.submit(request)
      toys.run(engine, one)
      self._found[key] = one.result()
    return self._found[key]

  def is_empty(self):
    self.forget()
    pages = self.decoder.account.pages
    return not self.decoder.account.open_rows and all(
      pages.count_held(kind) == 0 for kind in pages.kinds
    )


@pytest.fixture(
  scope='module', params=[1, pytest.param(2, marks=pytest.mark.slow)]
)
def alone(request):
  """On one device and on a mesh: there the same tests hold, to the bit."""
  return Alone('reference', request.param)


@pytest.fixture(autouse=True)
def all_is_free_in_the_end(alone):
  yield
  is_empty = alone.is_empty()
  for row in alone.decoder.account.open_rows:
    alone.decoder.close(row)  # One test that fails is enough.
  assert is_empty


@pytest.fixture
def ran(alone, monkeypatch):
  """Returns a list of how many tokens of each prompt's chunk ran."""
  counts, rounds = [], alone._rounds
  whole = rounds._run

  def counted(chunks, *arguments):
    counts.extend(len(chunk.tokens_L) for chunk in chunks)
    return whole(chunks, *arguments)

  monkeypatch.setattr(rounds, '_run', counted)
  return counts


CHARACTERS = [toys.text(13, 1), toys.text(9, 2)]


def requests():
  """Returns requests of which many begin alike, for parts of pages or more."""
  found = []
  for number in range(8):
    character = CHARACTERS[number % 2]
    tokens = [*character, *toys.text(3 + 4 * (number % 4), number // 4)]
    found.append(
      functools.partial(
        Request,
        tokens,
        3 + number % 5,
        Sampling(
          temperature=number % 3,
          seed=number,
          repetition_penalty=1.0 + number % 2,
          frequency_penalty=number // 4,
          dry_multiplier=number // 3 % 2,
          dry_allowed_length=1,
        ),
        scores_prompt=number in (2, 5),
        shared=len(character),
      )
    )
  return found


PACES = None, None, pacing.Pace(1, 2)


class Life(lives.Life):
  """Requests that begin alike, in few pages; each was run alone before."""

  def __init__(self, alone, distinct, seen, wanted=None):
    """`wanted` knows what each request gets; by default that is `alone`."""
    super().__init__(seen)
    self.alone, self.distinct = alone, distinct
    self.wanted = wanted or alone

  @stateful.initialize(
    ahead=lives.flags,
    pace=strategies.sampled_from(PACES),
    patience=strategies.sampled_from([0.0, 1e9]),
  )
  def start(self, ahead, pace, patience):
    clock = fake_engine.Clock(0.01)
    self.watch(self.alone.engine(ahead=ahead, pace=pace, clock=clock), patience)

  def draw_request(self, rng):
    number = rng.randrange(len(self.distinct))
    owner = rng.choice(['', 'a', 'b'])
    fields = {'owner': owner, 'priority': rng.choice([0, 0, 1, 2])}
    if owner and rng.random() < 0.5:
      fields['conversation'] = owner, number
    return self.distinct[number](**fields)

  def find_expected(self, one):
    wanted = self.wanted.result(one.request)
    return wanted.tokens.tolist(), wanted.reason

  def check_ended(self, one):
    if one.reason == 'length':
      assert toys.is_same(one.result(), self.wanted.result(one.request))


class MeshLife(Life):
  """It also counts what makes it hard, and looks at every device."""

  def check(self):
    super().check()
    account = self.alone.decoder.account
    tables = [account.table(row) for row in account.open_rows]
    for kind in account.pages.kinds:
      self.seen[f'full {kind}'] += account.pages.free(kind) == 0
      held = [page for table in tables for page in table[kind] if page >= 0]
      self.seen[f'forked {kind}'] += len(held) > len({*held})

  def teardown(self):
    super().teardown()
    assert self.alone.is_empty()
    for kind in self.alone.decoder.cache.kinds.values():
      for x, empty in zip(kind[2:], (-1, 0, 0, 0, 0), strict=True):
        for shard in x.addressable_shards:
          assert (np.asarray(shard.data) == empty).all()


@pytest.mark.parametrize(
  'drawn', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_any_life_of_sequences_has_the_bits_of_each_alone(alone, drawn):
  distinct, seen = requests(), collections.Counter()
  for one in distinct:
    alone.result(one())
  make = functools.partial(Life, alone, distinct, seen)
  if drawn:
    settings = machines.quick(Life, 80, 8).settings
    stateful.run_state_machine_as_test(make, settings=settings)
  else:
    for seed, (pace, patience) in enumerate(
      [(PACES[-1], 0.0), (None, 1e9), (PACES[-1], 1e9)]
    ):
      life = make()
      life.start(ahead=seed % 2 > 0, pace=pace, patience=patience)
      life.live(seed, 40)
      life.teardown()
  assert min(seen[x] for x in ('parked', 'evicted', 'sat out')) > 0
  assert seen['reused'] > 4 * seen['ended'] > 200


@pytest.mark.slow
@pytest.mark.parametrize('alone', [1], indirect=True)  # Once, not on each.
@pytest.mark.parametrize(('tensor', 'is_split'), [(2, False), (4, True)])
def test_lives_on_a_mesh_have_the_bits_of_one_device_and_leave_nothing(
  monkeypatch, tensor, is_split
):
  mesh_lives.split_tokens(monkeypatch, is_split)
  changes = {'quantization': toys.int8(), 'num_heads': 4, 'd_ff': 32}
  one, several = (Alone('reference', count, **changes) for count in (1, tensor))
  distinct, seen = requests(), collections.Counter()
  for make in distinct:
    assert toys.is_same(several.result(make()), one.result(make()))
  devices = several.decoder.cache.length_R.devices()
  held = meshes.held(devices)
  stateful.run_state_machine_as_test(
    functools.partial(MeshLife, several, distinct, seen, one),
    settings=machines.quick(MeshLife, LIVES, STEPS).settings,
  )
  kinds = [f'{x} {kind}' for x in ('full', 'forked') for kind in PAGES]
  assert min(seen[x] for x in ('parked', 'evicted', 'sat out', *kinds)) > 9
  # Nothing was made on a device that is still there, and no shape ran in two
  # programs.
  assert meshes.held(devices) == held
  rounds, decoder = several._rounds, several.decoder
  assert rounds._step._cache_size() == len(rounds.widths)
  prefills = [rounds._prefill[x]._cache_size() for x in (False, True)]
  assert prefills == [len(rounds.shapes), 1]
  once = rounds._first, rounds._join, decoder._give_pages, decoder._copy_pages
  assert [x._cache_size() for x in once] == [1] * len(once)


@pytest.mark.parametrize('ahead', [False, True])
def test_candidates_of_one_prompt_prefill_it_once(alone, ran, ahead):
  requests = [
    Request(toys.text(21, 7), 6, Sampling(seed=seed)) for seed in range(4)
  ]
  wanted = [alone.result(one) for one in requests]
  assert len({tuple(one.tokens) for one in wanted}) > 1
  engine = alone.engine(ahead=ahead)
  ran.clear()
  several = [engine.submit(one) for one in requests]
  toys.run(engine, *several)
  for one, result in zip(several, wanted):
    assert toys.is_same(one.result(), result)
  # All tokens once, and the last one of each for what follows it.
  assert sum(ran) == 21 + 3
  assert [one.reused for one in several] == [0, 20, 20, 20]


def test_owners_share_what_is_shared_and_no_token_more(alone, ran):
  engine = alone.engine()
  # Three pages and a token are the character's; the rest is equal by chance.
  tokens = toys.text(25, 8)

  def make_request(owner, tokens=tokens, most=4):
    return Request(tokens, most, Sampling(0), owner=owner, shared=13)

  wanted = alone.result(make_request('a'))
  for owner, reused in (('a', 0), ('a', 24), ('b', 13), ('c', 13), ('c', 24)):
    ran.clear()
    one = engine.submit(make_request(owner))
    toys.run(engine, one)
    assert toys.is_same(one.result(), wanted)
    assert one.result().reused == reused
    assert sum(ran) == 25 - reused
  # The next message, behind an answer of which the last token did not run.
  turn = [*tokens, *wanted.tokens.tolist(), *toys.text(3, 9)]
  for owner, reused in (('c', 25 + 3), ('d', 13)):
    one = engine.submit(make_request(owner, turn, 3))
    toys.run(engine, one)
    assert toys.is_same(
      one.result(), alone_in(engine, alone, make_request('', turn, 3))
    )
    assert one.result().reused == reused


def alone_in(engine, alone, request):
  """Returns a request's result alone, and leaves an engine its points."""
  held, alone.forget = alone.forget, lambda: None
  try:
    return alone.result(request)
  finally:
    alone.forget = held


def test_what_is_shared_stays_shared_in_a_conversation(alone):
  """Later turns are shorter than what their text shares."""
  generator = alone.engine()
  conversation = generator_lib.Dialogue(generator, LENGTH)
  salted = {'shared': 13, 'cache_salt': 'salt'}
  first = Request(toys.text(14, 3), 3, Sampling(0), owner='a', **salted)
  answer = [event.token for event in conversation.stream(first)]
  second = Request(toys.text(4, 4), 3, Sampling(0), owner='a', shared=13)
  turn = conversation.stream(second)
  found = [event.token for event in turn]
  assert turn.result.reused == 14 + 2
  others = [
    generator.submit(
      Request([*toys.text(13, 3), 1], 2, Sampling(0), owner='b', **salt)
    )
    for salt in (salted, salted | {'cache_salt': 'other'})
  ]
  toys.run(generator, *others)
  assert [other.reused for other in others] == [13, 0]
  whole = Request(
    [*toys.text(14, 3), *answer, *toys.text(4, 4)], 3, Sampling(0)
  )
  assert found == alone.result(whole).tokens.tolist()


@pytest.mark.parametrize('ahead', [False, True])
@pytest.mark.parametrize('at', ['prompt', 'answer'])
def test_nothing_resumes_what_gave_no_numbers(alone, monkeypatch, at, ahead):
  tokens = toys.text(14, 11)
  bad = Request(
    tokens, 9, Sampling(seed=1), shared=9, owner='a', conversation=1
  )
  others = [Request(toys.text(11, seed), 9, Sampling(0)) for seed in (12, 13)]
  wanted = [alone.result(one) for one in (bad, *others)]
  shown = {t for one in wanted[1:] for t in one.tokens.tolist()}
  shown |= {t for one in others for t in one.tokens}
  answer = wanted[0].tokens.tolist()
  if at == 'prompt':
    poison, steps = next(t for t in tokens[9:] if t not in shown), 0
  else:
    allowed = [t for t in answer[:-1] if t not in shown | {*tokens}]
    poison = allowed[0]
    steps = answer.index(poison) + 1
  decoder = alone.decoder
  good = decoder.params
  embedding = dict(good['embedding'])
  name = 'embedding_DV'
  embedding[name] = embedding[name].at[:, poison].set(jnp.nan)
  monkeypatch.setattr(decoder, 'params', {**good, 'embedding': embedding})
  engine = alone.engine(ahead=ahead)
  # Candidates of one prompt: those that follow would go on from its points.
  several = [engine.submit(one) for one in (bad, bad, *others, bad)]
  toys.run(engine, *several)
  for one in (several[0], several[1], several[4]):
    assert one.reason == 'error'
    assert isinstance(one.error, request_lib.BadLogits)
    assert one.result().tokens.tolist() == answer[:steps]
  assert toys.is_same(several[2].result(), wanted[1])
  assert toys.is_same(several[3].result(), wanted[2])
  # What was wrong is right again, and the same prompt runs anew.
  monkeypatch.setattr(decoder, 'params', good)
  again = engine.submit(bad)
  toys.run(engine, again)
  assert toys.is_same(again.result(), wanted[0])
