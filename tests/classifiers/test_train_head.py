"""From labelled texts to a token head that a server takes beside its gate.

The model's weights are random, and the marker is a sign whose last byte is in
no other text: a linear layer finds it, whatever the model makes of it.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.classifiers import examine
from kaiju_jax.classifiers import heads
from kaiju_jax.classifiers import hidden_states
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import train_head
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.model import token_head
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import decision
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from tests.decoding import toys
from tests.serving import planted

MARKER, NAMES = '§', ('mark',)
D = 32
WORDS = 'the', 'old', 'knight', 'sang', 'zorbital', 'again', 'naïve', '12', '…'
CONFIG = toys.config(
  vocab_size=256, layout='L0', num_heads=2, window=16, max_length=128
)


def marked(violating, benign, seed=0):
  rng = np.random.default_rng(seed)
  found = []
  for number in range(violating + benign):
    words = list(rng.choice(WORDS, rng.integers(2, 5)))
    words.append(''.join(rng.choice(list('bcdfghjklmnp'), 6)))
    if number < violating:
      words.insert(rng.integers(len(words)), MARKER)
    row = rows_lib.Row(' '.join(words), (number < violating,))
    found.append(row)
  return rows_lib.Rows(NAMES, tuple(found))


def random_head(scale=0.3):
  rng = np.random.default_rng(5)
  weight_DC = rng.normal(0, scale, (D, len(NAMES))).astype(np.float32)
  params = {'w_DC': weight_DC, 'bias_C': np.full(len(NAMES), 0.1, np.float32)}
  return params, token_head.TokenHeadConfig(NAMES)


@pytest.fixture(scope='module')
def loaded():
  return load.Loaded(toys.drawn(CONFIG, 0.1), CONFIG, None, '', 'a toy')


@pytest.fixture(scope='module')
def reader(loaded):
  return hidden_states.Reader(loaded)


@pytest.fixture(scope='module')
def gate(tmp_path_factory):
  """A folder as `train_gate` writes it, and its policy."""
  folder = tmp_path_factory.mktemp('safety')
  made = planted.gate((MARKER,), NAMES)
  policy = planted.policy(planted.stage(made.version, NAMES), None)
  made.save(folder / moderation.GATE)
  thresholds.write(folder / moderation.THRESHOLDS, policy)
  (folder / 'report.md').write_text('# Gate\n')
  return folder, dataclasses.replace(policy, hold=5)


@pytest.fixture(scope='module')
def trained(reader, gate):
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  settings = settings_lib.Division(choose=0.15, certify=0.7)
  return train_head.train(reader, marked(580, 580), gate[1], settings)


@pytest.mark.parametrize(('int8', 'near'), [('none', 2e-5), ('all', 2e-3)])
def test_what_is_counted_is_what_an_engine_scores(loaded, int8, near):
  head = random_head()
  kv = 'int8' if int8 == 'all' else 'none'
  config = dataclasses.replace(
    CONFIG, quantization=quantization_config.for_serving(int8, kv)
  )
  reader = hidden_states.Reader(loaded._replace(config=config))
  decoder = decoder_lib.Decoder(
    loaded.params, config, rows=1, length=128, page=16
  )
  tokenizer = tokenizer_lib.load('', 256)
  written = chat.format_of(tokenizer)
  opened_L, numbers = prompt.open_prefix(written), itertools.count()
  engine = engine_lib.Engine(decoder, tokenizer, chunk=8, head=head)

  def ran(tokens, count):
    # Another owner each time: what is in the cache would not be judged again.
    greedy, owner = sampling.Sampling(temperature=0), str(next(numbers))
    one_request = request_lib.Request(tokens, count, greedy, owner=owner)
    one = engine.submit(one_request)
    while one.reason is None:
      engine.advance()
    return one

  rows = rows_lib.Rows(
    NAMES,
    tuple(
      rows_lib.Row(text, (False,))
      for text in ('a', f'some {MARKER}\r\n', 'x' * 70, '\x03y\x01', '', 'b c')
    ),
  )
  found = train_head.read(reader, head, rows).highest('prompt')
  for row, score_C in zip(rows.rows, found):
    turn = prompt.Turn('user', row.text)
    made = prompt.conversation(opened_L, [turn], written, 120)
    np.testing.assert_allclose(
      ran(made.tokens, 1).prompt_scores, score_C, rtol=near
    )
  # What the model draws itself is judged token by token, its stop token not.
  opening_L = np.concatenate([opened_L, written.opening()])
  events = ran(opening_L, 30).events
  drawn = [event.token for event in events if event.scores is not None]
  said = hidden_states.PlacedText(
    np.concatenate([opening_L, drawn]), len(opening_L)
  )
  placed = reader.place('some §', 'reply')
  assert placed.first == said.first
  assert placed.tokens[said.first :].tolist() == list('some §'.encode())
  assert (placed.tokens[: said.first] == opening_L).all()
  (states_TD,) = reader.states([said])
  logit_T = states_TD @ head[0]['w_DC'][:, 0] + head[0]['bias_C'][0]
  scores = [event.scores[0] for event in events if event.scores is not None]
  assert len(scores) > 3 and np.ptp(scores) > 0.01
  np.testing.assert_allclose(1 / (1 + np.exp(-logit_T)), scores, rtol=near)


@pytest.mark.parametrize(
  'arm', [play.SERVED, play.Spread(int8='none', kv='none')]
)
def test_a_certificate_is_of_the_arm_that_is_served(
  gate, tmp_path, monkeypatch, arm
):
  found = []

  def read(path, tokenizer, quantization, dtype):
    found.append((path, quantization))
    raise OSError('planted')

  monkeypatch.setattr(load, 'from_anywhere', read)
  texts = settings_lib.Texts(planted=True)
  with pytest.raises(OSError, match='planted'):
    examine.certify_head('model', gate[0], tmp_path / 'out', texts, arm=arm)
  wanted = quantization_config.for_serving(arm.int8, arm.kv)
  assert found == [('model', wanted)]


def test_texts_are_read_as_if_alone(reader):
  """Many in a row, several rows, several batches: each has its own states."""
  placed = [
    reader.place('word ' * (n % 7) + str(n), role)
    for n in range(150)
    for role in hidden_states.ROLES
  ]
  found = list(reader.states(placed))
  assert len(found) == len(placed)
  for n in 0, 7, 150, 298, 299:
    assert len(found[n]) == len(placed[n].tokens) - placed[n].first
    (alone,) = reader.states([placed[n]])
    np.testing.assert_allclose(found[n], alone, rtol=1e-4, atol=1e-5)
  # A reader that was left in the middle has all its rows again.
  some = reader.states(placed)
  next(some)
  some.close()
  np.testing.assert_array_equal(next(reader.states(placed)), found[0])


def test_a_mesh_reads_what_one_device_reads(loaded, reader):
  meshed = hidden_states.Reader(loaded, tensor=2)
  placed = [reader.place(f'one {MARKER}', role) for role in hidden_states.ROLES]
  for got, want in zip(meshed.states(placed), reader.states(placed)):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
  assert meshed._decoder.network.devices == 2


def test_texts_stand_behind_characters_as_a_server_puts_them(
  loaded, monkeypatch
):
  config = dataclasses.replace(CONFIG, max_length=1024)
  reader = hidden_states.Reader(loaded._replace(config=config))
  written = chat.format_of(tokenizer_lib.load('', 256))
  prefixes = [prompt.open_prefix(written)]
  prefixes += [prompt.prefix(one, written) for one in builtin.CHARACTERS]
  used, placed = set(), []
  for text in map('some text {}'.format, range(60)):
    sequences = [
      prompt.conversation(one, [prompt.Turn('user', text)], written, 1024)
      for one in prefixes
    ]
    as_prompt, as_reply = (reader.place(text, x) for x in hidden_states.ROLES)
    whole = [one.tokens.tolist() for one in sequences]
    used.add(which := whole.index(as_prompt.tokens.tolist()))
    opened_L = np.concatenate([prefixes[which], written.opening()])
    assert as_reply.tokens.tolist() == [*opened_L, *text.encode()]
    assert as_reply.first == len(opened_L) and as_prompt.first == 0
    assert as_reply.shared == as_prompt.shared == len(prefixes[which])
    placed += [as_prompt, as_reply]
  assert len(used) == len(prefixes)
  # What texts share is read once, and their states are those of whole texts.
  counts, extend_text = [], decoder_lib.Decoder.extend_text

  def counted(self, rows, tokens_BL, count_B):
    counts.append(int(np.sum(count_B)))
    return extend_text(self, rows, tokens_BL, count_B)

  monkeypatch.setattr(decoder_lib.Decoder, 'extend_text', counted)
  found = list(reader.states(placed))
  own = sum(len(one.tokens) - one.shared for one in placed)
  assert sum(counts) == own + sum(map(len, prefixes))
  whole = list(reader.states([one._replace(shared=0) for one in placed]))
  # Where what they share has been evicted.
  reader._decoder.account.tree.clear()
  monkeypatch.setattr(decoder_lib.Decoder, 'record', lambda *_: None)
  evicted = list(reader.states(placed))
  for whole_TD, *others in zip(whole, found, evicted, strict=True):
    for one_TD in others:
      np.testing.assert_allclose(one_TD, whole_TD, rtol=1e-4, atol=1e-5)
  # A longer text than any before.
  (longer_TD,) = reader.states([reader.place('x' * 500, 'reply')])
  assert len(longer_TD) == 500


def test_a_text_that_no_row_holds_is_named(reader):
  with pytest.raises(ValueError, match=r"'yyy.*has 147 tokens as a prompt"):
    reader.place('y' * 128, 'prompt')
  assert len(reader.place('y' * 109, 'prompt').tokens) == 128


def test_the_score_is_the_one_that_speaks_against_the_head():
  rows = rows_lib.Rows(
    ('a', 'b'),
    tuple(rows_lib.Row('', x) for x in ((True, False), (False, False))),
  )
  score = {
    'prompt': [np.array([[0.1, 0.3], [0.9, 0.2]]), np.array([[0.1, 0.4]])],
    'reply': [np.array([[0.2, 0.6]]), np.array([[0.5, 0.1], [0.3, 0.2]])],
  }
  found = train_head.Read(rows, score).take_worst().score_NC
  assert found.tolist() == [[0.2, 0.6], [0.5, 0.4]]


def test_a_head_is_certified_and_served(trained, gate, tmp_path):
  outcome, stage = trained.outcome, trained.stage
  assert outcome.decision.status == decision.PASSED, outcome.decision
  assert outcome.policy.hold == 5 and outcome.policy.gate == gate[1].gate
  limit = stage.minor.limits[0]
  assert limit.low < 1e-3 < limit.high <= stage.adult.limits[0].high
  # A tenth of the benign tokens that were chosen on.
  assert 0.05 < trained.at_once < 0.2
  out = tmp_path / 'out'
  train_head.write(trained, gate[0], out)
  head = heads.load(out / moderation.HEAD, D)
  version = moderation.head_version(head[0], head[1].names)
  moderator = moderation.Moderator(moderation.Head(version, head[1].names))
  moderator.use(out)
  assert moderator.mode == 'moderated'
  assert moderator.version.policy == outcome.policy
  # By default a server runs the head that lies beside the gate.
  beside = heads.find('', str(out), D)
  assert (beside[0]['w_DC'] == trained.head[0]['w_DC']).all()
  assert heads.find('', str(gate[0]), D) is None
  with pytest.raises(ValueError, match=r'model\.d_model=16'):
    heads.find('', str(out), 16)
  text = (out / 'report.md').read_text()
  assert text.startswith('# Gate\n\n# Token head ') and 'Certified' in text
  assert '| minor | mark |' in text and 'a toy' in text
  with pytest.raises(FileExistsError):
    train_head.write(trained, gate[0], out)


def test_a_head_is_high_at_the_marker_and_low_before_it(trained, reader):
  high = trained.stage.minor.limits[0].high
  rows = marked(50, 0, seed=1)
  found = train_head.read(reader, trained.head, rows).score['reply']
  for row, score_TC in zip(rows.rows, found):
    first = np.argmax(score_TC[:, 0] >= high)
    # The sign's second byte, where the first does not say so as well.
    place = row.text.encode().index(MARKER.encode())
    assert first in (place, place + 1)


def test_a_head_that_says_nothing_is_refused(reader, gate, tmp_path):
  division = settings_lib.Division(choose=0.15, certify=0.7)
  result = train_head.train(
    reader, marked(580, 580), gate[1], division, random_head(0.01)
  )
  assert result.outcome.policy is None
  assert result.outcome.decision.status == decision.REFUSED
  assert 'of benign texts at most 1%' in result.outcome.decision.reasons[0]
  text = train_head.page(result).markdown()
  assert '**Not certified**' in text and 'Not trained here' in text
  train_head.write(result, gate[0], tmp_path / 'out')
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {
    moderation.GATE,
    moderation.HEAD,
    'report.html',
    'report.json',
    'report.md',
    decision.FILE,
  }


def test_few_texts_certify_nothing(reader, gate):
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  few = marked(60, 60)
  result = train_head.train(reader, few, gate[1])
  assert result.outcome.policy is None
  assert result.outcome.decision.status == decision.NOT_EVALUATED
  assert 'it takes 368 of each tier' in result.outcome.decision.reasons[0]
  with pytest.raises(ValueError, match='no such text is left to'):
    train_head.train(reader, marked(1, 1), gate[1])


def test_a_head_of_other_dimensions_is_refused(reader, gate):
  params, _ = random_head()
  head = params, token_head.TokenHeadConfig(('other',))
  with pytest.raises(ValueError, match=r"dimensions \['other'\], and.*'mark'"):
    train_head.train(reader, marked(60, 60), gate[1], head=head)


def test_the_head_must_claim_by_itself(gate):
  """A gate that blocks 99 % of prompts says nothing about replies."""
  stage = planted.stage('head', NAMES, low=0.1)
  policy = dataclasses.replace(gate[1], head=stage)
  train_head.check_claims(policy)
  counted = thresholds.bound_count(590, 600, 0.9, 0.95, True)
  limit = dataclasses.replace(stage.minor.limits[0], blocked=counted)
  tier = dataclasses.replace(stage.minor, limits=(limit,))
  policy = dataclasses.replace(
    policy, head=dataclasses.replace(stage, minor=tier)
  )
  thresholds.check(policy)
  with pytest.raises(ValueError, match=r'minor: mark.*0\.9000.*alone'):
    train_head.check_claims(policy)


def test_nothing_is_half_written(trained, gate, tmp_path, monkeypatch):
  def fails(*_):
    raise OSError('planted')

  monkeypatch.setattr(token_head, 'save', fails)
  with pytest.raises(OSError, match='planted'):
    train_head.write(trained, gate[0], tmp_path / 'out')
  assert not list(tmp_path.iterdir())


def test_numbers_that_are_none_certify_nothing(reader):
  params, config = random_head()
  params['bias_C'][0] = np.nan
  with pytest.raises(ValueError, match='no finite numbers'):
    train_head.read(reader, (params, config), marked(1, 0))


def test_of_many_long_texts_some_tokens_are_kept(reader, monkeypatch):
  rows, rng = marked(5, 5), np.random.default_rng(0)
  states_SD, text_S = train_head.read_states(reader, rows, rng)
  assert len(np.unique(text_S)) == 20 and len(states_SD) == len(text_S) > 400
  monkeypatch.setattr(train_head, '_KEPT', 20 * 4 * D * 6)
  fewer_SD, text_S = train_head.read_states(reader, rows, rng)
  assert fewer_SD.shape == (120, D)
  assert np.bincount(text_S).tolist() == [6] * 20


def test_a_part_of_the_tokens_is_low_in_all_dimensions():
  rng = np.random.default_rng(0)
  apart_TC = rng.uniform(0, 1, (4000, 3)) ** (1, 2, 3)
  shared_T1 = rng.normal(size=(4000, 1))
  alike_TC = np.hstack([shared_T1, shared_T1 + rng.normal(size=(4000, 1))])
  for score_TC in apart_TC, alike_TC:
    for part in 0.1, 0.5, 0.9:
      is_low_TC = score_TC < train_head.choose_low(score_TC, part)
      assert abs(is_low_TC.all(axis=1).mean() - part) < 0.01
      assert np.ptp(is_low_TC.mean(axis=0)) < 0.01


def test_what_is_shown_of_a_violating_reply():
  limit = thresholds.Limit('mark', 0.1, 0.8, None, None)
  tier = thresholds.Tier((limit,), None)
  first = np.array([[0.0], [0.3], [0.0], [0.5], [0.9], [0.0]])
  never = np.array([[0.5], [0.5]])
  assert train_head.find_released_share([first], tier, 2) == 3 / 6
  assert train_head.find_released_share([first, never], tier, 2) == 5 / 8
  assert train_head.find_share_at_once([first, never], tier) == 3 / 8
  both = thresholds.Tier((limit, limit), None)
  assert (
    train_head.find_share_at_once([np.array([[0.0, 0.0], [0.0, 0.5]])], both)
    == 0.5
  )
