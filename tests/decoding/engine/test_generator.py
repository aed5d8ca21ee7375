"""Generation through the cache against the forward pass without one."""

import functools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import penalties
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.model import transformer
from tests.decoding import toys

Request = request_lib.Request
Sampling = sampling_lib.Sampling
ROWS, LENGTH, CHUNK = 3, 64, 16
CONFIG = toys.small(window=12)
MODEL = transformer.Transformer(CONFIG)


@jax.jit
def drawn(logits_BV, settings, index_B, texts):
  row_B = jnp.arange(len(logits_BV))
  penalized_BV = penalties.apply(logits_BV, settings, texts, row_B)
  return sampling_lib.draw(logits_BV, settings, index_B, penalized_BV)


@pytest.fixture(scope='module')
def params():
  """On a device for good, as a checkpoint's."""
  return jax.device_put(toys.drawn(CONFIG, 0.4), jax.devices()[0])


@pytest.fixture(scope='module')
def generator(params):
  decoder = decoder_lib.Decoder(
    params, CONFIG, rows=ROWS, length=LENGTH, page=8
  )
  return generator_lib.Generator(decoder, tokenizer.Bytes(), chunk=CHUNK)


@pytest.fixture(autouse=True)
def all_rows_are_free_in_the_end(generator):
  yield
  assert len(generator._decoder.account.open_rows) == 0


@functools.lru_cache
def forward_of():
  return jax.jit(
    lambda params, tokens_BL: MODEL.apply(
      {'params': params}, tokens_BL, visibility.causal(LENGTH)
    )[0]
  )


def forward(params, tokens):
  """Returns the logits [L, V] of the tokens, without any cache."""
  tokens_BL = np.zeros((1, LENGTH), np.int32)
  tokens_BL[0, : len(tokens)] = tokens
  return np.asarray(forward_of()(params, tokens_BL))[: len(tokens)]


def log_softmax(logits_LV):
  x_LV = np.asarray(logits_LV, np.float64)
  x_LV = x_LV - x_LV.max(-1, keepdims=True)
  return x_LV - np.log(np.exp(x_LV).sum(-1, keepdims=True))


def uncached(params, request):
  """Draws a request's tokens with a forward pass over all of it for each."""
  tokens = list(request.tokens)
  settings = sampling_lib.settings([request.sampling])
  strings = request.sampling.dry_sequence_breakers
  breakers = penalties.find_breakers(tokenizer.Bytes(), strings)
  for _ in range(request.max_tokens):
    logits_V = forward(params, tokens)[-1]
    text_L, prompt = np.array(tokens, np.int32), len(request.tokens)
    text = penalties.read(text_L, prompt, breakers, CONFIG.vocab_size)
    text = jax.tree.map(lambda x: x[None], text)
    (token,), _ = drawn(logits_V[None], settings, np.array([len(tokens)]), text)
    tokens.append(int(token))
  return tokens[len(request.tokens) :]


def prompt(length, seed=0):
  return toys.text(length, seed)


PENALTIES = {
  'logit_bias': {97: 3.0, 9: 4.0},
  'repetition_penalty': 2.0,
  'repeat_last_n': 5,
  'frequency_penalty': 0.7,
  'presence_penalty': -1.5,
  'dry_multiplier': 0.5,
  'dry_allowed_length': 1,
  'dry_penalty_last_n': 9,
  'dry_sequence_breakers': ['b'],
}
REQUESTS = [
  Request(prompt(5, 1), 9, Sampling(temperature=0)),
  Request(prompt(40, 2), 20, Sampling(seed=2, top_k=20), scores_prompt=True),
  Request(prompt(1, 3), 30, Sampling(seed=3, repetition_penalty=3.0)),
  Request(prompt(16, 4), 1, Sampling(seed=4)),
  Request(prompt(17, 5), 12, Sampling(1.5, 50, 0.9, 0.01, 2.0, 5)),
  Request(prompt(33, 6), 12, Sampling(0, repetition_penalty=1.5)),
  # A penalty below 1 favours what the prompt holds.
  Request(prompt(24, 7), 12, Sampling(seed=7, repetition_penalty=0.2)),
  # It loops without a penalty.
  Request([*b'ab' * 16], 12, Sampling(0, dry_multiplier=3.0)),
  # It loops because its token breaks each repeated sequence.
  Request(
    [*b'ab'],
    12,
    Sampling(
      0,
      logit_bias={97: 30.0},
      dry_multiplier=3.0,
      dry_sequence_breakers=['a'],
    ),
  ),
  Request([*b'abc*' * 6], 24, Sampling(seed=8, **PENALTIES)),
]


def test_more_requests_than_rows_give_each_what_it_gets_alone(
  generator, params
):
  results = generator.generate(REQUESTS)
  for request, result in zip(REQUESTS, results):
    assert result.tokens.tolist() == uncached(params, request), request
    assert result.reason == 'length' and result.error is None
    (alone,) = generator.generate([request])
    assert alone.tokens.tolist() == result.tokens.tolist()
    assert alone.text == result.text
    np.testing.assert_allclose(
      alone.log_probabilities, result.log_probabilities, rtol=1e-5
    )


@pytest.mark.slow
def test_an_isolated_text_has_the_same_bits_whatever_is_beside_it(params):
  decoder = decoder_lib.Decoder(params, CONFIG, rows=4, length=LENGTH, page=8)
  isolated = generator_lib.Generator(decoder, chunk=CHUNK, batch_invariant=True)
  for request, result in zip(REQUESTS, isolated.generate(REQUESTS)):
    assert result.reused == 0
    (alone,) = isolated.generate([request])
    np.testing.assert_array_equal(alone.tokens, result.tokens)
    np.testing.assert_array_equal(
      alone.log_probabilities, result.log_probabilities
    )
  assert not len(decoder.account.tree)


@pytest.mark.versions
def test_log_probabilities_equal_those_of_the_forward_pass(generator, params):
  (result,) = generator.generate([REQUESTS[1]])
  tokens = [*REQUESTS[1].tokens, *result.tokens.tolist()]
  log_LV = log_softmax(forward(params, tokens))
  wanted_L = log_LV[np.arange(len(tokens) - 1), tokens[1:]]
  found_L = [*result.prompt_log_probabilities, *result.log_probabilities]
  np.testing.assert_allclose(found_L, wanted_L, rtol=1e-4)


@pytest.mark.parametrize('length', [1, 2, 16, 17, 18, LENGTH])
def test_scores_equal_those_of_the_forward_pass(generator, params, length):
  tokens = prompt(length, seed=length)
  if length > 5:
    tokens[5] = int(forward(params, tokens)[4].argmax())
  scores = generator.score(tokens)
  log_LV = log_softmax(forward(params, tokens))
  np.testing.assert_allclose(
    scores.log_probability_L,
    log_LV[np.arange(length - 1), tokens[1:]],
    rtol=1e-4,
  )
  np.testing.assert_array_equal(
    scores.is_likeliest_L, log_LV.argmax(-1)[:-1] == tokens[1:]
  )
  assert length <= 5 or scores.is_likeliest_L[4]


@pytest.mark.versions
def test_joining_and_leaving_compile_nothing(generator):
  generator.warm()
  generator.generate(REQUESTS)
  decoder = generator._decoder
  rounds = generator.engine.rounds
  compiled = [
    rounds._step,
    rounds._join,
    rounds._first,
    decoder._give_pages,
    decoder._copy_pages,
    *rounds._prefill.values(),
  ]
  before = [one._cache_size() for one in compiled]
  own = rounds._step, rounds._prefill[False]
  # Two sizes of a chunk. (JAX counts the others for all decoders together.)
  assert [one._cache_size() for one in own] == [1, 2]
  with generator.stream(REQUESTS[2]) as stream:
    next(stream)
    generator.warm([3, 17])  # Leaves running sequences as they are.
    tokens = [event.token for event in stream]
  assert tokens == generator.generate([REQUESTS[2]])[0].tokens.tolist()[1:]
  with generator.stream(REQUESTS[2]) as stream:
    next(stream)
    generator.generate(REQUESTS[:3])
    generator.stream(
      Request(prompt(11), 3, Sampling(0.5, 3, 0.5, 0.5, 2))
    ).close()
    next(stream)
  assert [one._cache_size() for one in compiled] == before


def test_streamed_text_stops_before_a_stop_string(generator):
  request = REQUESTS[2]
  (whole,) = generator.generate([request])
  raw = tokenizer.Bytes().decode(whole.tokens)
  assert whole.text == raw
  readable = [i for i in range(8, 27) if '\ufffd' not in raw[i : i + 2]]
  string = raw[readable[0] : readable[0] + 2]
  stopped = Request(
    request.tokens, 30, request.sampling, stop_strings=['never', string]
  )
  pieces = list(generator.stream(stopped))
  text = ''.join(event.text for event in pieces)
  assert text == raw[: raw.index(string)]
  assert [event.reason for event in pieces[:-1]] == [None] * (len(pieces) - 1)
  assert pieces[-1].reason == 'stop_string'
  assert [event.token for event in pieces] == whole.tokens[
    : len(pieces)
  ].tolist()


def test_a_cancelled_stream_frees_its_row(generator):
  streams = [generator.stream(Request(prompt(4), 40)) for _ in range(ROWS)]
  for stream in streams:
    next(stream)
  waiting = generator.stream(Request(prompt(4), 2))
  generator.advance()
  assert waiting._sequence.row is None
  freed = streams[1]._sequence.row
  streams[1].close()
  assert list(streams[1]) == []
  assert streams[1].result.reason == 'cancelled'
  assert len(streams[1].result.tokens) > 0
  next(waiting)
  assert waiting._sequence.row == freed
  assert len(list(waiting)) == 1
  dropped = streams.pop()._sequence
  del stream
  generator.advance()
  assert dropped.reason == 'cancelled'
  held = [generator._decoder.open() for _ in range(ROWS - 1)]
  del streams[0]
  assert len(generator.score([1, 2]).is_likeliest_L) == 1
  for row in held:
    generator._decoder.close(row)
  never_begun = generator.stream(Request(prompt(4), 2))
  never_begun.close()
  assert list(never_begun) == []


def test_an_interrupted_batch_frees_its_rows(generator, monkeypatch):
  rounds = iter(range(3))

  def interrupted():
    if next(rounds) == 2:
      raise KeyboardInterrupt
    generator_lib.Generator.advance(generator)

  monkeypatch.setattr(generator, 'advance', interrupted)
  with pytest.raises(KeyboardInterrupt):
    generator.generate(REQUESTS)
  assert generator.engine.is_idle


@pytest.mark.versions
def test_turns_of_a_conversation_keep_their_cache(generator, params):
  first, second = REQUESTS[2], Request(prompt(9, 8), 8, Sampling(seed=9))
  with generator.converse() as conversation:
    answer = [event.token for event in conversation.stream(first)]
    held = len(first.tokens) + len(answer) - 1
    with pytest.raises(ValueError, match='its row of the cache holds 33'):
      conversation.stream(Request(prompt(9), 25))
    turn = conversation.stream(second)
    generator.advance()
    with pytest.raises(ValueError, match='has not ended'):
      conversation.stream(second)
    found = [event.token for event in turn]
    # The last answer's last token ran, and the new turn.
    assert turn.result.reused == held
    together = [*first.tokens, *answer, *second.tokens]
    whole = Request(together, 8, Sampling(seed=9))
    assert found == uncached(params, whole)
    assert conversation.left == LENGTH - len(together) - 8
  with pytest.raises(ValueError, match='is closed'):
    conversation.stream(second)


def test_a_conversation_is_its_first_owners(generator):
  with generator.converse() as conversation:
    list(conversation.stream(Request(prompt(3), 2, owner='ann')))
    for owner in '', 'ben':
      with pytest.raises(
        ValueError, match=f"owner={owner!r}: .* that of 'ann'"
      ):
        conversation.stream(Request(prompt(3), 2, owner=owner))
    list(conversation.stream(Request(prompt(3), 2, owner='ann')))


def test_a_cut_off_turn_is_part_of_the_next(generator, params):
  last = Request(prompt(6, 12), 5, Sampling(seed=1))
  with generator.converse() as conversation:
    cut = conversation.stream(Request(prompt(30, 10), 9))
    generator.advance()  # 16 of the 30 tokens.
    cut.close()
    with conversation.stream(Request(prompt(2, 11), 9)) as told:
      answer = [next(told).token for _ in range(3)]
    found = [event.token for event in conversation.stream(last)]
  tokens = [*prompt(30, 10), *prompt(2, 11), *answer, *last.tokens]
  assert found == uncached(params, Request(tokens, 5, last.sampling))


@pytest.mark.parametrize('length', [10**6, LENGTH + 1, 0, -3])
def test_a_conversation_that_no_row_holds_is_refused(generator, length):
  with pytest.raises(ValueError, match=f'length={length}: .* holds 1…64'):
    generator.converse(length)


def test_a_conversation_takes_its_length_and_no_more(generator):
  with generator.converse(12) as conversation:
    assert conversation.left == 12
    assert len(list(conversation.stream(Request(prompt(3), 4)))) == 4
    with pytest.raises(ValueError, match='its row of the cache holds 5'):
      conversation.stream(Request(prompt(3), 3))
    assert len(list(conversation.stream(Request(prompt(3), 2)))) == 2
    assert conversation.left == 0
  with pytest.raises(ValueError, match='the conversation is closed'):
    conversation.left  # noqa: B018


def test_a_turn_outlives_its_conversation_and_a_closed_one_ends(generator):
  turn = generator.converse().stream(REQUESTS[0])
  assert len(list(turn)) == 9
  conversation = generator.converse()
  cut = conversation.stream(Request(prompt(3), 20))
  next(cut)
  conversation.close()
  conversation.close()
  assert cut.result.reason == 'cancelled'
  assert generator.engine.is_idle


@pytest.mark.versions
@pytest.mark.parametrize('at', ['prefill', 'step'])
def test_ctrl_c_in_a_round_comes_after_it(generator, monkeypatch, at):
  """As while a prompt is computed: the call has taken the cache."""
  rounds, requests = generator.engine.rounds, [REQUESTS[2], REQUESTS[5]]
  wanted = [one.tokens.tolist() for one in generator.generate(requests)]
  streams = [generator.stream(one) for one in requests]
  name = '_step' if at == 'step' else '_prefill'
  whole = rounds._step if at == 'step' else rounds._prefill[False]
  calls = iter(range(100))

  def interrupted(*arguments):
    result = whole(*arguments)
    if next(calls) == 1:
      signal.raise_signal(signal.SIGINT)
    return result

  with monkeypatch.context() as patch:
    patch.setattr(
      rounds, name, interrupted if at == 'step' else {False: interrupted}
    )
    with pytest.raises(KeyboardInterrupt):
      while True:
        generator.advance()
  for stream, tokens in zip(streams, wanted):
    assert [event.token for event in stream] == tokens


def test_a_turns_scores_are_those_of_its_prompt(generator, params):
  with generator.converse() as conversation:
    cut = conversation.stream(Request(prompt(40, 10), 2, scores_prompt=True))
    generator.advance()
    cut.close()  # 16 tokens are in the cache, 24 are not.
    assert len(cut.result.prompt_log_probabilities) == 16
    turns = [prompt(40, 10)]
    for seed in 11, 12:
      turn_request = Request(
        prompt(3, seed), 2, Sampling(0), scores_prompt=True
      )
      turn = conversation.stream(turn_request)
      drawn_tokens = [event.token for event in turn]
      turns.append([*turn_request.tokens])
      text = [token for turn_tokens in turns for token in turn_tokens]
      log_LV = log_softmax(forward(params, text))
      at = np.arange(len(text) - 2, len(text))
      wanted_L = log_LV[at - 1, np.array(text)[at]]
      found_L = turn.result.prompt_log_probabilities
      np.testing.assert_allclose(found_L, wanted_L, rtol=1e-4)
      turns.append(drawn_tokens)


@pytest.mark.parametrize(
  ('changes', 'error', 'named'),
  [
    ({'tokens': []}, ValueError, r'\.tokens is empty'),
    ({'tokens': [1, 256]}, ValueError, r'\.tokens\[1\]=256: a token is 0…255'),
    ({'tokens': [-1]}, ValueError, r'\.tokens\[0\]=-1: a token is 0…255'),
    ({'tokens': [1.0]}, TypeError, r'\.tokens is float64\[1\]'),
    ({'tokens': [[1]]}, TypeError, r'\.tokens is int64\[1, 1\]'),
    ({'tokens': [1] * 60}, ValueError, r'60 tokens and max_tokens=5 are 65'),
    ({'max_tokens': 0}, ValueError, r'\.max_tokens=0'),
    ({'max_tokens': 2.0}, TypeError, r'\.max_tokens=2.0'),
    ({'sampling': None}, TypeError, r'\.sampling=None'),
    ({'stop_tokens': [256]}, ValueError, r'\.stop_tokens holds 256'),
    ({'stop_tokens': [-1]}, ValueError, r'\.stop_tokens holds -1'),
    ({'stop_tokens': 5}, TypeError, r'\.stop_tokens=5: expected several'),
    ({'deadline': '1'}, TypeError, r"\.deadline='1': must be seconds"),
    ({'deadline': True}, TypeError, r'\.deadline=True'),
    ({'deadline': 0}, ValueError, r'\.deadline=0: .* above 0'),
    ({'scores_prompt': 'yes'}, TypeError, r"\.scores_prompt='yes'"),
    ({'stop_strings': ['']}, ValueError, "strings holds ''"),
  ],
)
def test_bad_requests_are_refused_and_the_others_untouched(
  generator, changes, error, named
):
  bad = Request(**{'tokens': [1], 'max_tokens': 5, **changes})
  with generator.stream(REQUESTS[0]) as stream:
    events = [next(stream)]
    with pytest.raises(error, match=named):
      generator.stream(bad)
    with pytest.raises(error, match=named):
      generator.generate([REQUESTS[3], bad])
    events.extend(stream)
  (alone,) = generator.generate([REQUESTS[0]])
  assert [event.token for event in events] == alone.tokens.tolist()


def test_bad_scores_and_generators_are_refused(generator):
  with pytest.raises(ValueError, match='tokens is empty'):
    generator.score([])
  with pytest.raises(ValueError, match=r'tokens\[0\]=256'):
    generator.score([256])
  with pytest.raises(ValueError, match=r'tokens has 65: .* holds 64'):
    generator.score([1] * 65)
  with pytest.raises(TypeError, match='request=3'):
    generator.stream(3)
  without = generator_lib.Generator(generator._decoder)
  with pytest.raises(ValueError, match='has no tokenizer'):
    without.stream(Request([1], 2, stop_strings=['x']))
  with pytest.raises(ValueError, match='chunk=0'):
    generator_lib.Generator(generator._decoder, chunk=0)
