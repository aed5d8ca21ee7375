"""The layout of a budget keeps what its layers are measured to need."""

import dataclasses
import itertools
import re

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import chat
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer
from kaiju_jax.interchange import own
from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import share
from kaiju_jax.interchange.surgery import trial
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import defaults
from kaiju_jax.runs import kv_budget
from kaiju_jax.runs import load
from kaiju_jax.runs import uptrain
from kaiju_jax.tasks.needle import trial_rows
from tests.interchange import toys

Layer, State = layers_lib.Layer, kv_budget.State
TEACHER = toys.changed(
  toys.PLAIN, num_kv_heads=2, layout='G0 G1 G2 G3', rope_local=50.0
)
TEACHER_OF_BYTES = dataclasses.replace(TEACHER, vocab_size=256, max_length=2048)
LENGTH = 40
RNG = np.random.default_rng


def rows_of(config, seed=0):
  """Two rows of random tokens; the last six are answers."""
  tokens_BL = RNG(seed).integers(0, config.vocab_size, (2, LENGTH), np.int32)
  place_L = np.arange(LENGTH)
  is_text_BL = np.broadcast_to((place_L > 0) & (place_L < 30), (2, LENGTH))
  is_answer_BL = np.broadcast_to(place_L >= 34, (2, LENGTH))
  return trial.Rows(tokens_BL, is_text_BL, is_answer_BL)


def text_of(seed):
  row = packing.row([packing.Piece(RNG(seed).integers(0, 260, 50))], 60)
  return packing.stack([row])


def oracle(config, params, rows):
  """Returns the reading of the whole model, its mask made by the model."""
  seen = visibility.concatenate([visibility.causal(LENGTH)] * 2)
  model = transformer.Transformer(config)
  logits_BLV = np.asarray(
    jax.jit(lambda p: model.apply({'params': p}, rows.tokens_BL, seen))(params)
  ).astype(np.float64)
  target_BL = rows.tokens_BL[:, 1:]
  logits_BLV = logits_BLV[:, :-1]
  lost_BL = np.log(np.exp(logits_BLV).sum(-1)) - np.take_along_axis(
    logits_BLV, target_BL[..., None], -1
  ).squeeze(-1)
  right_BL = logits_BLV.argmax(-1) == target_BL
  is_answer_BL = rows.is_answer_BL[:, 1:]
  return trial.Reading(
    lost_BL[rows.is_text_BL[:, 1:]].mean(),
    lost_BL[is_answer_BL].mean(),
    right_BL[is_answer_BL].sum(),
  )


@pytest.fixture(scope='module')
def world():
  """A teacher of random weights, and its statistics."""
  weights = plain.weights(toys.params_of(TEACHER), TEACHER)
  pairs = [(0, 1), (1, 2), (2, 3)]
  texts = [text_of(seed) for seed in (1, 2)]
  return weights, calibrate.measure(weights, TEACHER, texts, pairs)


@pytest.fixture(scope='module')
def fits(world):
  weights, statistics = world
  return trial.Fits(weights, TEACHER, statistics)


@pytest.mark.parametrize(
  'layout, heads, kv',
  [
    ('G0 G1 G2 G3', 2, 'none'),
    ('L0:7+3 G1 L2:5 L3:1+2', 2, 'none'),
    ('L0:9+1 L0:9+1 G2 G2', 2, 'none'),
    ('G0 L1:9+1 L1:9+1 G3', 1, 'none'),
    ('G0 L1:9+1 G2 G3', 2, 'int8'),
  ],
)
def test_a_trial_reads_what_the_whole_model_does(
  world, fits, layout, heads, kv
):
  """Also where it begins in the middle of an earlier one."""
  weights, statistics = world
  quantization = dataclasses.replace(quantization_config.none(), kv=kv)
  # Here local layers turn as the teacher's global ones do.
  config = dataclasses.replace(
    TEACHER,
    layout=layout,
    num_kv_heads=heads,
    rope_local=TEACHER.rope_global,
    quantization=quantization,
  )
  rows = rows_of(TEACHER)
  want = oracle(
    config, share.student(weights, TEACHER, config, statistics), rows
  )
  trials = trial.Trials(weights, TEACHER, rows)
  student = fits.student(config.layers(), heads, kv)
  got = trials.read(student)
  np.testing.assert_allclose(got, want, rtol=2e-5)
  for other in 'G0 G1 G2 G3', 'L0:7+3 G1 L2:5 G3', 'G0 L1:9+1 L1:9+1 L3:2':
    begun = dataclasses.replace(config, layout=other)
    trials.read(fits.student(begun.layers(), heads, kv), keep=True)
    assert trials.read(student) == got


def test_a_local_layer_of_the_teacher_keeps_its_angles():
  config = dataclasses.replace(TEACHER, layout='L0 G1 L2 G3', window=6)
  params = toys.params_of(config)
  weights, rows = plain.weights(params, config), rows_of(config)
  student = trial.Student(config.layers(), weights.layers, 2)
  got = trial.Trials(weights, config, rows).read(student)
  np.testing.assert_allclose(got, oracle(config, params, rows), rtol=2e-5)


# --- The search, on costs that are written down.

START = State((Layer(None, 0), Layer(None, 1), Layer(None, 2)), 2)


def size(state, length=100):
  return layers_lib.kv_bytes(state.layers, length, 8, state.heads)


def search(budget, cost, size=size):
  """Returns the path, and the states that were measured in their order."""
  asked = []

  def read(state, keep):
    asked.append(state)
    found = cost(state)
    loss, needle = found if isinstance(found, tuple) else (2.5 + found, 0.25)
    return trial.Reading(loss, needle, 0)

  def changes(state):
    return kv_budget.list_changes(state, window=10, sinks=4)

  return kv_budget.descend(START, budget, changes, size, read), asked


def local_of(state):
  return {i for i, one in enumerate(state.layers) if one.window}


def of_layers(*each, together=0.0, other=9.0):
  """Costs of a window in each layer; `together` of one in both 0 and 1."""

  def cost(state):
    local = local_of(state)
    shared = len(layers_lib.owners(state.layers)) < len(state.layers)
    return (
      sum(each[i] for i in local)
      + together * ({0, 1} <= local)
      + other * (shared + (state.heads < START.heads))
    )

  return cost


def test_the_layer_that_costs_most_stays_global():
  cost = of_layers(0.1, 2.0, 0.3)
  path, _ = search(size(START) // 2, cost)
  assert [local_of(one.state) for one in path] == [set(), {0}, {0, 2}]
  assert [one.reading.loss for one in path] == pytest.approx([2.5, 2.6, 2.9])
  assert path[-1].state.layers[2] == Layer(10, 2, True, 4)
  assert [one.bytes for one in path] == [size(one.state) for one in path]


def test_a_budget_of_exactly_a_layouts_bytes_is_met_by_it():
  cost = of_layers(0.1, 2.0, 0.3)
  path, _ = search(size(START) // 2, cost)
  for one, following in itertools.pairwise(path):
    assert search(one.bytes, cost)[0][-1] == one
    assert search(one.bytes - 1, cost)[0][-1] == following
  assert search(size(START), cost)[0] == path[:1]


def test_what_costs_more_beside_others_is_measured_again():
  """Alone, windows in 0 and in 1 are cheap; together they are not."""
  cost = of_layers(0.1, 0.2, 0.5, together=3.0)
  path, asked = search(size(START) // 2, cost)
  assert local_of(path[-1].state) == {0, 2}
  singles = kv_budget.list_changes(START, 10, 4)
  assert set(asked[1 : 1 + len(singles)]) == set(singles.values())
  # Then, beside a window in 0, those of 1 and of 2, and nothing else.
  again = [local_of(one) for one in asked[1 + len(singles) :]]
  assert again == [{0}, {0, 1}, {0, 2}]


@pytest.mark.parametrize('first', [0.1, -0.1])
def test_what_costs_no_more_beside_others_is_taken_at_once(first):
  """All are measured by themselves, also behind one that gains."""
  path, asked = search(size(START) // 2, of_layers(first, 0.2, 0.25))
  assert local_of(path[-1].state) == {0, 1}
  singles = kv_budget.list_changes(START, 10, 4)
  assert len(set(asked[1 : 1 + len(singles)])) == len(singles)
  again = [local_of(one) for one in asked[1 + len(singles) :]]
  assert again == [{0}, {0, 1}]


def test_needles_count_as_the_loss_does():
  def cost(state):
    local = local_of(state)
    other = 9.0 * (len(local) == 0 and state != START)
    needle = 0.15 * (0 in local)
    return sum((0.1, 0.2, 0.3)[i] for i in local) + other, needle

  path, _ = search(size(START) - 1, cost)
  assert local_of(path[-1].state) == {1}


def test_to_answer_better_than_the_teacher_pays_for_nothing():
  """A window in layer 0 finds more needles by chance, and costs more loss."""

  def cost(state):
    local = local_of(state)
    other = 9.0 * (len(local) == 0 and state != START)
    needle = 0.5 - 0.3 * (0 in local) + 0.05 * (1 in local)
    return sum((0.2, 0.1, 0.3)[i] for i in local) + other, needle

  path, _ = search(size(START) - 1, cost)
  assert local_of(path[-1].state) == {1}


def test_a_change_is_worth_the_bytes_that_it_saves():
  """One head saves half of the cache, a window or a pair less than a third."""

  def cost(state):
    return {START: 0.0, START._replace(heads=1): 1.2}.get(state, 1.0)

  path, _ = search(size(START) - 1, cost)
  assert path[-1].state == START._replace(heads=1)


def test_a_change_that_saves_nothing_is_not_measured():
  """At 14 tokens a window of 10 with four sinks holds all."""
  path, asked = search(
    size(START, 14) // 2, lambda state: 0.0, lambda state: size(state, 14)
  )
  assert path[-1].bytes == size(START, 14) // 2
  assert not any(map(local_of, asked))


def test_a_budget_below_every_layout_is_refused():
  # Two owners of one head with 14 tokens of 24 bytes.
  assert search(672, lambda state: 0.0)[0][-1].bytes == 672
  with pytest.raises(ValueError, match='as small as 671 bytes'):
    search(671, lambda state: 0.0)


def test_changes_keep_pairs_of_a_kind_together():
  layers = (
    Layer(None, 0),
    Layer(None, 0),
    Layer(7, 2),
    Layer(None, 3),
    Layer(None, 4, False),
  )
  found = kv_budget.list_changes(State(layers, 4), 10, 4)
  assert set(found) == {
    ('local', 0),
    ('local', 3),
    ('heads', 1),
    ('heads', 2),
  }
  changed = found['local', 0].layers
  assert (
    changed[:2] == (Layer(10, 0, True, 4),) * 2 and changed[2:] == layers[2:]
  )
  for state in found.values():
    layers_lib.check(state.layers)
  pair = State((Layer(None, 0), Layer(None, 1), Layer(None, 1)), 1)
  assert set(kv_budget.list_changes(pair, 10, 4)) == {
    ('local', 0),
    ('local', 1),
  }


def test_other_windows_may_cost_neither_loss():
  """What is better in one by more than it is worse in the other is left."""
  teacher = trial.Reading(2.0, 0.25, 0)

  def point(bytes_, loss, needle):
    return kv_budget.Point(START, bytes_, trial.Reading(loss, needle, 0))

  best = point(90, 2.5, 1.0)
  for loss, needle in (2.51, 0.5), (2.0, 1.01):
    assert kv_budget.choose(best, [point(50, loss, needle)], teacher) is best
  equal, better = point(80, 2.5, 1.0), point(95, 2.4, 1.0)
  assert kv_budget.choose(best, [equal], teacher) is equal
  assert kv_budget.choose(best, [equal, better], teacher) is better
  # Better than the teacher is no better.
  ahead, behind = point(90, 2.5, 0.1), point(80, 2.5, 0.2)
  assert kv_budget.choose(ahead, [behind], teacher) is behind


# --- Rows with needles.


def test_every_row_has_a_needle_in_its_text_and_its_question_at_the_end():
  text = RNG(1).integers(97, 123, 6 * 1536, np.int32)
  rows = trial_rows.draw(text, tokenizer.Bytes(), TEACHER_OF_BYTES)
  depths, cities = [], set()
  for tokens_L, is_text_L, is_answer_L in zip(*rows):
    assert tokens_L[0] == tokenizer.Bytes.bos_id and not is_text_L[0]
    read = tokens_L.astype(np.uint8).tobytes()
    number = tokens_L[is_answer_L].astype(np.uint8).tobytes()
    assert len(number) == 5 and number.isdigit() and read.count(number) == 2
    needle = read[-38:]
    assert needle.startswith(b' The magic number for ')
    assert needle.endswith(number + b'.') and read.count(needle) == 2
    cities.add(needle[22:28])
    assert not is_text_L[read.index(needle) :][: len(needle)].any()
    assert is_text_L.sum() + 1 + 2 * 38 == len(read) == 1536
    depths.append(read.index(needle) / len(read))
  assert len(cities) == 6
  assert depths[0] < 0.1 and depths[-1] > 0.85
  np.testing.assert_allclose(np.diff(depths), depths[1] - depths[0], atol=2e-3)
  # The rest is the person's text, in its order.
  read = rows.tokens_BL[rows.is_text_BL]
  np.testing.assert_array_equal(read, text[: len(read)])
  with pytest.raises(ValueError, match=r'holds out 9,215 tokens: .* 9,216'):
    trial_rows.draw(text[1:], tokenizer.Bytes(), TEACHER_OF_BYTES)
  again = trial_rows.draw(text, tokenizer.Bytes(), TEACHER_OF_BYTES)
  jax.tree.map(np.testing.assert_array_equal, rows, again)


def test_a_model_that_chats_is_asked_in_its_format_in_every_other_row():
  text = RNG(1).integers(97, 123, 6 * 1536, np.int32)
  bytes_ = tokenizer.Bytes()
  format = chat.format_of(bytes_)
  asked = trial_rows.draw(text, bytes_, TEACHER_OF_BYTES, format)
  plain_ = trial_rows.draw(text, bytes_, TEACHER_OF_BYTES)
  numbers = set()
  for row, parts in enumerate(zip(*asked)):
    tokens_L, is_text_L, is_answer_L = parts
    if row % 2 == 0:
      ends = tokens_L[-38:], plain_.tokens_BL[row, -38:]
      np.testing.assert_array_equal(*ends)
      np.testing.assert_array_equal(is_answer_L, plain_.is_answer_BL[row])
      continue
    reply = bytes_.decode(tokens_L[is_answer_L])
    assert re.fullmatch(r'The secret code is \d{5}\.', reply)
    numbers.add(reply)
    read = bytes_.decode(tokens_L[is_text_L])
    begin = int(is_text_L.argmax())
    content = bytes_.decode(tokens_L[begin:])
    content = content[: content.index('?') + 1]
    assert content.count(f' {reply}') == 1
    assert (
      content.replace(f' {reply}', '') == f'{read}\n\nWhat is the secret code?'
    )
    whole = format.document([('user', content), ('assistant', reply)])
    np.testing.assert_array_equal(tokens_L, whole[: len(tokens_L)])
    assert is_answer_L[-len(reply) :].all()
    # The needle stands where that of the row's own depth does.
    depth = content.index(reply) / len(read)
    assert depth == pytest.approx((row + 0.5) / 6, abs=2e-3)
  assert len(numbers) == 3
  read = asked.tokens_BL[asked.is_text_BL]
  np.testing.assert_array_equal(read, text[: len(read)])


def test_text_is_at_least_half_of_a_row():
  text = RNG(1).integers(97, 123, 6 * 153, np.int32)
  of = [dataclasses.replace(TEACHER_OF_BYTES, max_length=n) for n in (153, 152)]
  rows = trial_rows.draw(text, tokenizer.Bytes(), of[0])
  assert (rows.is_text_BL.sum(1) == 76).all()
  with pytest.raises(ValueError, match=r'rows of 152 tokens: .* leave 75'):
    trial_rows.draw(text, tokenizer.Bytes(), of[1])


# --- The search on a model, by the command's function.


@pytest.fixture(scope='module')
def one_layer(tmp_path_factory):
  """A teacher whose layer 2 alone attends: a folder, and its text."""
  folder = tmp_path_factory.mktemp('kv_budget')
  config = dataclasses.replace(TEACHER, vocab_size=256, max_length=256)
  params = toys.params_of(config)
  w_NDHK = params['blocks']['layer_0']['attention']['w_o_DHK']
  w_NDHK = w_NDHK * np.array([0, 0, 4, 0])[:, None, None, None]
  params['blocks']['layer_0']['attention']['w_o_DHK'] = w_NDHK
  own.write(folder / 'teacher', params, config, '', masters=True)
  text = folder / 'text'
  text.mkdir()
  for n in range(40):
    letters = RNG(n).choice(list('abcdefgh \n'), 1500)
    (text / f'{n}.txt').write_text(''.join(letters))
  return folder


def test_the_one_layer_that_attends_stays_global(one_layer, monkeypatch):
  """Windows in the others change nothing, and so do their sinks: none is kept.

  The budget is what four sinks take.
  """
  read = trial.Trials.read

  def likeliest(self, student, keep=False):
    reading = read(self, student, keep)
    # Losses of random weights on random digits fall as they rise: what counts
    # is how far they are from the teacher's.
    if not hasattr(self, 'first'):
      self.first = reading
    return reading._replace(
      needle=abs(reading.needle - self.first.needle),
      loss=abs(reading.loss - self.first.loss),
    )

  monkeypatch.setattr(trial.Trials, 'read', likeliest)
  monkeypatch.setattr(kv_budget, 'CALIBRATED', 500)
  layers = layers_lib.parse('L0+4 L1+4 G2 L3+4', 8)
  budget = layers_lib.kv_bytes(layers, 200, 8, 2, 4, 0)
  said = uptrain.write(
    one_layer / 'teacher',
    one_layer / 'student',
    uptrain.Student(window=8, int8=False),
    uptrain.FirstWeights('fitted', text=str(one_layer / 'text')),
    uptrain.Budget(budget, 200),
  )
  config = load.from_anywhere(one_layer / 'student').config
  assert config.layout == 'L0 L1 G2 L3'
  assert (config.window, config.num_kv_heads) == (8, 2)
  assert f'{budget:,}' in said and 'global by period' in said


@pytest.mark.parametrize(
  'chats, template, formats',
  [
    ('', 'its own', [None]),
    ('folder', 'its own', ['its own']),
    ('folder', ValueError('too long'), [None]),
    ('folder', 'changes the text', ['changes the text', None]),
  ],
)
def test_a_teacher_is_asked_in_the_template_that_it_has(
  one_layer, monkeypatch, chats, template, formats
):
  found = load.from_anywhere(one_layer / 'teacher')._replace(chats=chats)
  asked = []

  def read(*_):
    if isinstance(template, ValueError):
      raise template
    return defaults.Defaults(template)

  def draw(text, tokenizer, config, format=None):
    asked.append(format)
    if format == 'changes the text':
      raise ValueError(format)

  monkeypatch.setattr(defaults, 'read', read)
  monkeypatch.setattr(trial_rows, 'draw_several', draw)
  _, said = uptrain._draw_rows(found, str(one_layer / 'text'))
  assert asked == formats
  words = f'  no question is asked in the chat template: {template}'
  assert said == ([words] if chats and formats[-1] is None else [])


@pytest.mark.parametrize(
  'wanted, start, budget, message',
  [
    ({}, {}, {'kv_budget': 500}, r'kv_budget=500: no layout .* windows 64\+4'),
    ({}, {}, {'kv_length': 257}, r'kv_length=257: must be 1…256'),
    ({}, {}, {'kv_length': 0}, r'kv_length=0: must be 1…256'),
    ({}, {'text': 'short'}, {}, r'holds out \d+ tokens: must be .* 1,536'),
    ({'layout': 'G0 G1 G2 G3'}, {}, {}, 'no layout'),
    ({}, {'start': 'mean'}, {}, "start='fitted'"),
    ({}, {}, {'kv_budget': -1}, 'kv_budget=-1: must be at least 0'),
  ],
)
def test_what_cannot_be_found_is_refused_before_anything_compiles(
  one_layer, monkeypatch, wanted, start, budget, message
):
  monkeypatch.setattr(calibrate, 'make_reader', None)
  monkeypatch.setattr(trial, 'Trials', None)
  (one_layer / 'short').mkdir(exist_ok=True)
  for n in range(40):
    (one_layer / 'short' / f'{n}.txt').write_text('Too short.')
  start = {'start': 'fitted', 'text': 'text'} | start
  start['text'] = str(one_layer / start['text'])
  with pytest.raises(ValueError, match=message) as error:
    uptrain.write(
      one_layer / 'teacher',
      one_layer / 'refused',
      uptrain.Student(**wanted),
      uptrain.FirstWeights(**start),
      uptrain.Budget(**{'kv_budget': 10**6, 'kv_length': 200} | budget),
    )
  assert '\n' not in str(error.value)
  assert not (one_layer / 'refused').exists()
