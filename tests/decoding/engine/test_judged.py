"""What a token-level head gives each token, against whole forward passes."""

import dataclasses

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.device import judge
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.device import reference
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.engine import saving
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import groups
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.decoding.requests import stop
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from tests.decoding import toys

Request, Sampling = request_lib.Request, sampling.Sampling
ROWS, LENGTH, CHUNK = 3, 40, 8
CONFIG = toys.small()


@pytest.fixture(scope='module')
def params():
  return toys.drawn(CONFIG)


@pytest.fixture(scope='module')
def whole(params):
  """Returns a function of a text: its probabilities [L, C], without a cache."""
  model = transformer.Transformer(CONFIG)
  row = visibility.causal(LENGTH)

  @reference.jit
  def probability(params, head, tokens_BL):
    hidden_BLD = model.apply(
      {'params': params}, tokens_BL, row, method='hidden'
    )
    logits_BLC = token_head.TokenHead(toys.HEAD).apply(
      {'params': head}, hidden_BLD
    )
    return jax.nn.sigmoid(logits_BLC)

  def of(text):
    tokens_BL = np.zeros((1, LENGTH), np.int32)
    tokens_BL[0, : len(text)] = text
    found_BLC = probability(params, toys.head_of()[0], tokens_BL)
    return np.asarray(found_BLC)[0, : len(text)]

  return of


REQUESTS = [
  Request(toys.text(5, 1), 9, Sampling(seed=1)),
  Request(toys.text(21, 2), 6, Sampling(0)),
  # Goes on behind the first one's prompt.
  Request([*toys.text(5, 1), *toys.text(13, 3)], 8, Sampling(seed=3)),
  Request(toys.text(8, 4), 1, Sampling(seed=4)),
]


def test_scores_have_the_bits_of_a_whole_forward_pass(generator, whole):
  streams = [generator.stream(one) for one in REQUESTS]
  events = [list(stream) for stream in streams]
  for request, stream, shown in zip(REQUESTS, streams, events):
    result, prompt = stream.result, len(request.tokens)
    assert [event.token for event in shown] == result.tokens.tolist()
    assert len(shown) == request.max_tokens and result.reason == 'length'
    want_LC = whole([*request.tokens, *result.tokens])
    np.testing.assert_array_equal(
      [event.scores for event in shown], want_LC[prompt:]
    )
    np.testing.assert_array_equal(
      result.prompt_scores, want_LC[:prompt].max(axis=0)
    )
  reused = [stream.result.reused for stream in streams]
  assert reused[0] == 0 and max(reused) > 0


def test_a_heads_version_is_that_of_its_weights_and_dimensions(generator):
  renamed = token_head.TokenHeadConfig(('kind', 'long', 'loud'))
  moved = toys.head_of(w_DC=toys.head_of()[0]['w_DC'] + 1e-6)
  heads = [
    toys.head_of(),
    moved,
    (toys.head_of()[0], renamed),
    toys.head_of(1),
    toys.head_of(),
  ]
  found = [judge.Judge(head, generator._decoder).version for head in heads]
  assert found[0] == found[-1] and len(set(found)) == 4


def test_the_padding_of_a_chunk_is_not_judged(generator, whole):
  requests = [
    Request(toys.text(2, seed), 1, Sampling(0)) for seed in range(20, 28)
  ]
  for request, result in zip(requests, generator.generate(requests)):
    want_C = whole(request.tokens).max(axis=0)
    np.testing.assert_array_equal(result.prompt_scores, want_C)


def test_without_a_head_a_step_computes_and_returns_nothing_of_it(generator):
  plain = generator_lib.Generator(generator._decoder, chunk=CHUNK)
  texts, shapes = {}, {}
  for name, one in (('plain', plain), ('judged', generator)):
    rounds, decoder = one.engine.rounds, one._decoder
    traced = rounds._step.trace(
      decoder.params,
      decoder.cache,
      decoder.account.rings(),
      rounds._state,
      np.arange(ROWS, dtype=np.int32),
      np.zeros(ROWS, np.int32),
      rounds._head,
    )
    (_, packed), _ = traced.out_info
    texts[name], shapes[name] = str(traced.jaxpr), packed.shape
  assert shapes == {'plain': (2, ROWS), 'judged': (2 + 3, ROWS)}
  assert 'logistic' not in texts['plain'] and 'logistic' in texts['judged']
  request = dataclasses.replace(REQUESTS[3], tokens=[1])
  sequence = sequence_lib.Sequence(1, request, np.ones(1), stop.Text(None))
  assert sequence.update(sequence_lib.Drawn(7, -0.5)) == 'length'
  assert sequence.events[0].scores is None
  assert sequence.result().prompt_scores is None


def test_a_token_comes_with_the_call_behind_it_and_a_stop_at_once(
  generator, whole
):
  engine = generator.engine
  (drawn,) = generator.generate([REQUESTS[0]])
  stop = int(drawn.tokens[4])
  count = drawn.tokens.tolist().index(stop)
  one = engine.submit(dataclasses.replace(REQUESTS[0], stop_tokens=[stop]))
  shown = []
  while one.reason is None:
    engine.advance()
    shown.append(len(one.events))
  # Nothing in the round that draws the first; two tokens in the last.
  assert shown == [0, *range(1, count), count + 1]
  *before, last = one.events
  assert last.token == stop and last.reason == 'stop_token'
  assert last.scores == before[-1].scores
  first = engine.submit(
    dataclasses.replace(REQUESTS[0], stop_tokens=[int(drawn.tokens[0])])
  )
  engine.advance()
  (event,) = first.events
  assert (event.token, event.reason) == (drawn.tokens[0], 'stop_token')
  assert event.text == '' and event.scores is None


def test_a_scored_prompt_is_judged_whole_however_often_it_is_asked(
  generator, whole
):
  """What it could resume was judged before, and runs again for its scores."""
  prompt = toys.text(19, 30)
  plain = Request(prompt, 2, Sampling(0))
  scored = dataclasses.replace(plain, scores_prompt=True)
  (first,) = generator.generate([plain])
  want_LC = whole([*prompt, *first.tokens])
  for one in generator.generate([scored, plain, scored]):
    np.testing.assert_array_equal(
      one.prompt_scores, want_LC[: len(prompt)].max(axis=0)
    )
    assert one.tokens.tolist() == first.tokens.tolist()
    given = one.prompt_log_probabilities
    if given is not None:
      assert one.reused <= 1 and len(given) == len(prompt) - 1
      assert np.isfinite(given).all()


def test_a_stop_string_is_judged_before_what_stands_before_it_is_shown(
  generator, whole
):
  (drawn,) = generator.generate([REQUESTS[2]])
  at = next(i for i in range(2, 6) if 0 < drawn.tokens[i] < 128)
  string = chr(drawn.tokens[at])
  at = tokenizer.Bytes().decode(drawn.tokens).index(string)
  stopped = dataclasses.replace(REQUESTS[2], stop_strings=[string])
  events = list(generator.stream(stopped))
  assert events[-1].reason == 'stop_string'
  tokens = [event.token for event in events]
  want_LC = whole([*stopped.tokens, *tokens])[len(stopped.tokens) :]
  np.testing.assert_array_equal([x.scores for x in events], want_LC)


@pytest.mark.parametrize('at', ['prompt', 'answer'])
def test_scores_that_are_no_numbers_end_their_sequence_alone(
  generator, monkeypatch, at
):
  """A head that overflows for one token's hidden state, and no other's."""
  (good,) = generator.generate([REQUESTS[3]])
  engine = generator.engine
  name = {'prompt': 'prefill', 'answer': 'step'}[at]
  whole = getattr(engine.rounds, name)

  one, other = (engine.submit(REQUESTS[x]) for x in (0, 3))

  def bad(called, *arguments):
    ran = whole(called, *arguments)
    rows = [x.row if name == 'prefill' else x for x in called]
    if one.row not in rows:
      return ran
    if name == 'prefill':
      judged_BLC = np.array(ran.judged_BLC)
      judged_BLC[rows.index(one.row), 0, -2] = np.nan
      return ran._replace(judged_BLC=judged_BLC)
    packed = np.array(ran)
    packed[-2, rows.index(one.row)] = np.float32(np.nan).view(np.int32)
    return packed

  monkeypatch.setattr(engine.rounds, name, bad)
  while other.reason is None or one.reason is None:
    engine.advance()
  assert one.reason == 'error' and not one.events
  assert isinstance(one.error, request_lib.BadLogits)
  assert 'gives a token is no number' in str(one.error)
  assert other.result().tokens.tolist() == good.tokens.tolist()


@pytest.mark.parametrize(
  'head, message',
  [
    (
      toys.head_of(w_DC=np.zeros((8, 3))),
      r'\(8, 3\).*expected .*\(16, 3\).*16',
    ),
    (({}, toys.HEAD), r'head has the weights {}: expected'),
    (
      (toys.head_of()[0], token_head.TokenHeadConfig(())),
      r'token_head.names=\(\)',
    ),
  ],
)
def test_a_head_of_another_model_is_refused(generator, head, message):
  with pytest.raises(ValueError, match=message):
    generator_lib.Generator(generator._decoder, head=head)


def test_a_saved_text_goes_on_with_the_bits_of_one_that_never_stopped(
  generator,
):
  """Its scores come back with it, too; no page has kept a bit of it."""
  engine, copies = generator.engine, page_copies.PageCopies(generator._decoder)
  account = engine.decoder.account
  account.tree.clear()
  root = saving.digest_root(engine, copies, 'weights', 'tokenizer')
  found = saving.Saving(engine, root, copies)

  def run(tokens):
    request = dataclasses.replace(
      Request(tokens, 5, Sampling(seed=2)),
      owner='ann',
      conversation='c',
      shared=9,
      cache_salt='salt',
    )
    stream = generator.stream(request)
    return [*stream], stream.result

  tokens = [*toys.text(19, 30)]
  tokens += [*run(tokens)[1].tokens, *toys.text(6, 31)]
  saved = [
    found.copy(x).to_bytes() for x in found.select(10**9, lambda name: True)
  ]
  points = len(account.tree)
  want = run(tokens)
  account.tree.clear()
  every = {
    kind: range(pool.pages)
    for kind, pool in engine.decoder.network.pools.items()
  }
  copies.put(
    every,
    {
      kind: np.full((len(x), copies.page_bytes[kind]), 65, np.uint8)
      for kind, x in every.items()
    },
  )
  assert found.adopt(groups.parse(x, root) for x in saved) == points == 3
  events, result = run(tokens)
  assert result.reused == want[1].reused == len(tokens) - 6
  assert events == want[0]
  assert result.prompt_scores == want[1].prompt_scores
  np.testing.assert_array_equal(
    result.log_probabilities, want[1].log_probabilities
  )
  account.tree.clear()
  held = [account.pages.count_held(kind) for kind in account.pages.kinds]
  assert held == [0, 0]


def test_a_page_that_is_not_finite_is_not_saved(generator):
  copies = page_copies.PageCopies(generator._decoder)
  pages = {'global': {3: 4}, 'local': {}}
  data = copies.take(pages).read()
  data['global'].view(np.float32)[0, 5] = np.nan
  data['local'] = np.zeros((0, copies.page_bytes['local']), np.uint8)
  copies.put({kind: [*x] for kind, x in pages.items()}, data)
  with pytest.raises(ValueError, match='global page holds numbers'):
    copies.take(pages).read()
