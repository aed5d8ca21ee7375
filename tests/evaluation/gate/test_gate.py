"""The quantization gate's readings, and what it refuses."""

import dataclasses
import types

import numpy as np
import pytest
from scipy import special

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.evaluation import cached_answers
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.evaluation.gate import golden_tokens
from kaiju_jax.evaluation.gate import kv_channels
from kaiju_jax.evaluation.gate import paired_loss
from kaiju_jax.evaluation.gate import reader
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.gates import needle_gate
from kaiju_jax.gates import persona
from kaiju_jax.gates import players
from kaiju_jax.gates import quantization_gate as gate
from kaiju_jax.interchange.templates import folder as folder_lib
from kaiju_jax.quantization import int8
from tests.evaluation.gate import small_models
from tests.interchange.templates import shapes

FORMAT, LENGTH = small_models.FORMAT, small_models.LENGTH
config, params = small_models.config, small_models.params
conversation, opened = small_models.conversation, small_models.opened


@pytest.fixture(scope='module')
def floats():
  return opened()


def prompt_of_last_turn(one, format):
  before = tuple(dialogue.Exchange(x.user, x.reference) for x in one.turns[:7])
  last = dialogue.Asked(one, before, one.turns[7].user)
  return responders.Model(None, format)._prompt(last)


@pytest.mark.parametrize('name', ['turns', 'default', 'headers'])
def test_a_template_s_text_has_the_tokens_of_a_server(tmp_path, name):
  (tmp_path / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  (tmp_path / 'chat_template.jinja').write_text(shapes.TEMPLATES[name])
  tokenizer = tokenizer_lib.load(str(tmp_path / 'tokenizer.json'))
  format = folder_lib.read(tmp_path, tokenizer).format
  prompt_L = prompt_of_last_turn(conversation(), format)
  text = golden_tokens.encode(conversation(), format)
  assert text.tokens_L[: len(prompt_L)].tolist() == prompt_L.tolist()


def test_a_text_has_the_tokens_of_a_server():
  one = conversation()
  text = golden_tokens.encode(one, FORMAT)
  prompt_L = prompt_of_last_turn(one, FORMAT)
  assert text.tokens_L[: len(prompt_L)].tolist() == prompt_L.tolist()
  rest = FORMAT.tokenizer.decode(text.tokens_L[len(prompt_L) :])
  assert rest == f'{one.turns[7].reference}{chat.ETX}'
  said = {
    name: FORMAT.tokenizer.decode(text.tokens_L[text.classes_L == index])
    for index, name in enumerate(golden_tokens.CLASSES)
  }
  assert 'ANN IS A CAT' in said['prefix'] and 'Q' not in said['prefix']
  assert said['user'].count('?') == 8 and 'REPLY' not in said['user']
  assert said['character'].count('REPLY') == 8 and 'HI!' in said['character']


def test_a_reading_is_that_of_the_cache(floats):
  tokens_L = golden_tokens.encode(conversation(), FORMAT).tokens_L[:300]
  found = reader.Reader(floats.decoder, 300).read(tokens_L)
  parts = list(found.logits)
  assert [len(one) for one in parts] == [256, 44]
  rows = [floats.decoder.open()]
  try:
    hidden = list(
      cached_answers.prefill(floats.decoder, rows, tokens_L[None], 64)
    )
    wanted = [np.asarray(floats.decoder.logits(x))[0] for x in hidden]
  finally:
    floats.decoder.close(rows[0])
  np.testing.assert_allclose(
    np.concatenate(parts), np.concatenate(wanted), atol=2e-4, rtol=2e-4
  )
  with pytest.raises(ValueError, match='600 tokens: at most 512'):
    reader.Reader(floats.decoder, 300).read(np.zeros(600, np.int32))


def test_a_text_may_end_with_the_model_s_last_position(floats):
  tokens_L = golden_tokens.encode(conversation(), FORMAT).tokens_L[:300]
  parts = reader.Reader(floats.decoder, 300).read(tokens_L).logits
  wanted_LV = np.concatenate(list(parts))
  last = dataclasses.replace(config(), max_length=300)
  decoder = decoder_lib.Decoder(params(), last, rows=1, length=300)
  one = reader.Reader(decoder, 290)
  for length in 300, 290:
    found_LV = np.concatenate(list(one.read(tokens_L[:length]).logits))
    np.testing.assert_allclose(found_LV, wanted_LV[:length], atol=2e-5)
  with pytest.raises(ValueError, match='301 tokens: at most 300'):
    one.read(np.zeros(301, np.int32))


def test_differences_are_those_of_their_definitions():
  random = np.random.default_rng(0)
  ours, theirs = random.normal(size=(2, 7, 5)) * 3
  tokens_L = random.integers(5, size=7)
  parts = [slice(0, 4), slice(4, 7)]
  found = divergence.compare(
    [ours[x] for x in parts], [theirs[x] for x in parts], tokens_L
  )
  p, q = special.softmax(ours, -1)[:-1], special.softmax(theirs, -1)[:-1]
  np.testing.assert_allclose(found.kl_L, special.rel_entr(p, q).sum(-1))
  at = np.arange(6)
  for loss, x in (found.baseline_loss_L, p), (found.candidate_loss_L, q):
    np.testing.assert_allclose(loss, -np.log(x[at, tokens_L[1:]]))
  is_same = p.argmax(-1) == q.argmax(-1)
  assert 0 < is_same.sum() < 6
  assert (found.margin_L[is_same] == -1).all()
  wanted = np.log(p.max(-1) / p[at, q.argmax(-1)])
  np.testing.assert_allclose(found.margin_L[~is_same], wanted[~is_same])
  summary = divergence.summarize([found])
  assert summary.agreement == is_same.mean()
  assert summary.margin == pytest.approx(wanted.max())
  assert summary.loss == pytest.approx(
    np.log(p[at, tokens_L[1:]] / q[at, tokens_L[1:]]).mean()
  )


def test_a_token_that_is_never_drawn_has_no_divergence():
  ours = np.array([[0.0, -np.inf, 1.0]] * 2)
  found = divergence.compare([ours], [ours], np.array([0, 2]))
  assert found.kl_L.tolist() == [0]


def test_groups_are_by_class_tier_and_language():
  read = []
  for tier, language in (('public', 'en'), ('mature', 'en'), ('mature', 'de')):
    text = golden_tokens.encode(conversation(0, tier, language), FORMAT)
    count = len(text.tokens_L) - 1
    # The prefix's last token predicts the greeting's first, a character's.
    is_character_L = text.classes_L[1:] == 2
    kl_L = np.where(is_character_L, 1.0, 0.0) * (2 if language == 'de' else 1)
    read.append((text, divergence.Differences(*[kl_L] * 3, np.full(count, -1))))
  found = divergence.group(read)
  kl = {key: one.kl for key, one in found.items()}
  assert kl['character', 'public', 'all'] == kl['character', 'all', 'en'] == 1
  assert kl['character', 'all', 'de'] == 2 and kl['prefix', 'all', 'all'] == 0
  assert kl['character', 'mature', 'all'] == 1.5
  assert len(found) == 3 * (1 + 2 + 2)
  assert set(divergence.group(read[:1])) == {
    (name, 'all', 'all') for name in golden_tokens.CLASSES
  }


def test_a_model_beside_itself_differs_in_nothing(floats):
  found = gate.read(floats, floats, [conversation()])
  assert all(
    one == divergence.Summary(one.count, 0, 0, 1, 0, 0)
    for one in found.groups.values()
  )
  assert found.bits.rise == 0 and found.bits.baseline > 0
  assert {x.status for x in gate.checks_of_reading(found)} == {'passed'}
  assert found.channels['baseline'] == found.channels['candidate']


def test_int8_is_read_as_it_is_served(floats):
  candidate = opened('int8', matmul='int8', embedding='int8', kv='int8')
  found = gate.read(floats, candidate, [conversation()])
  assert all(one.kl > 0 for one in found.groups.values())
  rails = [one.at_rail for one in found.channels['candidate'].values()]
  assert len(rails) == 4 and all(0 <= one < 0.05 for one in rails)
  for one in found.channels['baseline'].values():
    assert one.at_rail is None and one.largest >= 1


def limits_of(prose, one):
  """Returns the parameters whose limits were fitted to a text."""
  tokens_L = FORMAT.tokenizer.encode(prose)
  found = reader.Reader(one.decoder, len(tokens_L)).read(tokens_L)
  drawn = params('channel')
  layers = dict(drawn['blocks'])
  for owner, pair in found.stored.items():
    name = f'layer_{owner}'
    fitted = {
      f'{stem}_limit_K': np.abs(np.asarray(x)[:, : len(tokens_L)]).max(1)
      for stem, x in zip('kv', pair)
    }
    attention = {**layers[name]['attention'], **fitted}
    layers[name] = {**layers[name], 'attention': attention}
  return {**drawn, 'blocks': layers}


def test_limits_that_were_fitted_to_prose_lose_the_character(floats):
  """Bits per byte of prose are no worse, and the character's tokens are."""
  prose = 'we saw the old mill by the river and the road that leads home. ' * 5
  baseline = opened('wide', params('channel'), kv='int8', kv_scale='channel')
  fitted = limits_of(prose, opened('floats', params('token')))
  candidate = opened('fitted', fitted, kv='int8', kv_scale='channel')
  found = gate.read(baseline, candidate, [conversation()], prose)
  assert found.bits.rise < gate.Limits().bits
  refused = [
    str(one.reason)
    for one in gate.checks_of_reading(found)
    if one.status == 'refused'
  ]
  assert any(one.startswith('character: mean KL') for one in refused), refused
  assert any('are at the rail' in one for one in refused), refused
  assert not any(one.startswith('bits per byte') for one in refused)


def test_codes_at_the_rail_and_outliers_are_counted():
  random = np.random.default_rng(0)
  x = random.normal(size=(2, 9, 8)).astype(np.float32)
  x[:, :, 3] *= 200
  x[:, 6:] = 1e9  # Padding.
  x[1, :, 5] *= 0.5
  counter = kv_channels.Counter()
  counter.add({1: (x, x[:, :, :3])}, 4)
  counter.add({1: (x[:, 4:], x[:, 4:, :3])}, 2)
  keys, values = (
    counter.summarize()[1, 'keys'],
    counter.summarize()[1, 'values'],
  )
  assert keys.at_rail is None and keys.outliers == 2
  size = np.abs(x[:, :6]).max(1).ravel()
  assert keys.largest == pytest.approx(size.max() / np.median(size))
  assert values.outliers == 0
  # Per token: 127 stands once per token, and once more here.
  coded = np.array([[[127, 5, -127], [3, -127, 0], [127, 127, 127]]], np.int8)
  scales = np.ones((1, 3), np.float32)
  counter = kv_channels.Counter()
  counter.add({0: (int8.Quantized(coded, scales),) * 2}, 2)
  assert counter.summarize()[0, 'keys'].at_rail == 1 / 6
  # Per channel: all of them.
  counter = kv_channels.Counter()
  scales = np.array([1, 30, 1], np.float32)
  counter.add({0: (int8.Quantized(coded, scales),) * 2}, 2)
  found = counter.summarize()[0, 'values']
  assert found.at_rail == 3 / 6 and found.outliers == 1


def changed(found, **changes):
  """Returns a reading of which one figure is changed."""
  key = ('character', 'all', 'all')
  if changes.keys() <= set(divergence.Summary._fields):
    one = found.groups[key]._replace(**changes)
    return found._replace(groups={**found.groups, key: one})
  if 'candidate' in changes:
    return found._replace(bits=found.bits._replace(**changes))
  one = found.channels['baseline'][0, 'keys']._replace(**changes)
  layers = {**found.channels['baseline'], (0, 'keys'): one}
  return found._replace(channels={**found.channels, 'candidate': layers})


def test_each_figure_has_its_limit():
  one = divergence.Summary(100, 0.0, 0.0, 1.0, 0.0, 0.0)
  found = gate.Read(
    {('character', 'all', 'all'): one, ('user', 'all', 'all'): one},
    gate.Bits(2.0, 2.0),
    {
      who: {(0, 'keys'): kv_channels.Channels(0.0, 1, 30.0)}
      for who in ('baseline', 'candidate')
    },
  )
  for inside, outside, words in (
    ({'kl': 0.01}, {'kl': 0.011}, 'character: mean KL is 0.011'),
    ({'kl_p99': 0.1}, {'kl_p99': 0.11}, 'character: 99th percentile'),
    ({'kl': 0.0}, {'kl': float('nan')}, 'character: mean KL is nan'),
    ({'agreement': 0.97}, {'agreement': 0.96}, '96.0% of the likeliest'),
    ({'candidate': 2.009}, {'candidate': 2.02}, 'bits per byte rise by 1.00%'),
    ({'at_rail': 0.01}, {'at_rail': 0.02}, '2.0% of the codes of keys'),
    ({'outliers': 1}, {'outliers': 2}, '2 channels of keys are more than 20'),
  ):
    assert not [
      x.reason
      for x in gate.checks_of_reading(changed(found, **inside))
      if x.reason
    ]
    [reason] = [
      x.reason
      for x in gate.checks_of_reading(changed(found, **outside))
      if x.reason
    ]
    assert words in reason


def judged(value, count, tier):
  return [
    persona.Judged(
      conversation(number, tier),
      ['A'] * 8,
      dict.fromkeys(golden.PROPERTIES, value + 0.01 * (number % 3)),
    )
    for number in range(count)
  ]


def personas(before, after, count=200):
  said = [
    [one for tier in golden.TIERS for one in judged(value, count, tier)]
    for value in (before, after)
  ]
  found = list(gate.checks_of_personas(*said))
  return {one.status for one in found}, ' '.join(x.reason for x in found)


def test_personas_must_be_kept():
  assert personas(4.5, 4.5) == ({'passed'}, ' ' * 5)
  status, reason = personas(3.9, 3.9)
  assert status == {'refused', 'passed'} and 'public: the mean score' in reason
  status, reason = personas(4.8, 4.6)
  assert 'refused' in status and 'mature: scores dropped by 0.20' in reason
  status, reason = personas(4.5, 4.5, 199)
  assert status == {'not evaluated'}
  assert '199 conversations; at least 200 are needed' in reason
  assert 'These show a drop of' in reason


def test_each_figure_stands_under_the_model_that_it_is_of(floats, monkeypatch):
  candidate = opened('int8', matmul='int8', kv='int8')
  asked = []

  def measure(*given):
    asked.append(given)
    return needle_gate.Needle(
      'facts', paired_loss.PairedLoss(9, 9, 8, 1, 0), 0.0
    )

  def play(responder, conversations, judge, rows):
    is_first = responder._generator is floats.generator
    value = 4.5 if is_first else 4.0
    scores = dict.fromkeys(golden.PROPERTIES, value)
    return [persona.Judged(x, ['A'] * 8, scores) for x in conversations]

  monkeypatch.setattr(needle_gate, 'measure', measure)
  monkeypatch.setattr(persona, 'play', play)
  pair = gate.Pair(candidate=candidate, baseline=floats)
  judge = judges.Rules()
  talks = [conversation(n) for n in range(2)]
  found = gate.examine(pair, talks, '', judge, ('facts', 9, 64))
  assert asked == [(floats, candidate, 'facts', 9, 64)]
  channels = found.figures['channels']
  assert {x['at_rail'] for x in channels['baseline'].values()} == {None}
  assert None not in {x['at_rail'] for x in channels['candidate'].values()}
  means = {
    who: one['tiers']['public']['mean']['value']
    for who, one in found.figures['personas'].items()
  }
  assert means == {'baseline': 4.5, 'candidate': 4.0}
  assert any('it was +0.50' in one.reason for one in found.checks)
  assert 'Needle facts: 9 → 8 of 9' in found.needle
  # Without a judge and a needle, nothing passes.
  reasons = [x.reason for x in gate.examine(pair, talks).checks if x.reason]
  assert any('No needle was asked' in one for one in reasons)
  assert any('Personas were not played' in one for one in reasons)
  with pytest.raises(ValueError, match='judge'):
    own = types.SimpleNamespace(identity=f'checkpoint {candidate.digest}')
    gate.examine(pair, talks, '', own)


def test_models_of_other_tokens_are_refused(floats):
  other = dataclasses.replace(FORMAT, digest='another template')
  with pytest.raises(ValueError, match='must have the tokenizer'):
    players.check_same_tokens(floats, floats._replace(format=other))
  players.check_same_tokens(floats, floats)
