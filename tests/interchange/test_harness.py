"""lm-eval's tasks on our models: transformers', held_out's and a server's sums.

Needs the extras `interchange` and `harness`; `make interchange` runs it. No
connection leaves this machine.
"""

import json
import socket

import numpy as np
import pytest

from kaiju_jax.app import serve
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.evaluation import held_out
from kaiju_jax.experiments.studies import harness
from kaiju_jax.interchange import hugging_face
from kaiju_jax.model import transformer
from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.routes import api
from tests.interchange import toys

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytest.importorskip('lm_eval')

LENGTH = 64
CONFIG = toys.changed(toys.PLAIN, vocab_size=256, max_length=LENGTH)
PAIRS = [
  ('Once upon', ' a time'),
  ('Once upon ', 'a time'),
  ('', 'No context.'),
]
WORDS = 'the lamp is lit and the sea is calm tonight says the keeper '
# Rows of 64 hold a document each: BOS and 63 bytes.
TEXTS = [(WORDS * 4)[n : n + LENGTH - 1] for n in range(4)]


class Instance:
  """Stands for lm-eval's of the same name."""

  def __init__(self, *args):
    self.args = args


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch):
  connect = socket.socket.connect

  def only_here(self, address):
    assert self.family == socket.AF_UNIX or address[0] == '127.0.0.1', address
    return connect(self, address)

  monkeypatch.setattr(socket.socket, 'connect', only_here)


class World:
  """One engine, and lm-eval's model over it."""

  def __init__(self):
    self.params = toys.params_of(CONFIG)
    self.tokenizer = tokenizer_lib.Bytes()
    decoder = decoder_lib.Decoder(
      self.params, CONFIG, rows=2, length=LENGTH, page=8
    )
    self.generator = generator_lib.Generator(decoder, self.tokenizer)
    self.engine = engine_lib.Engine(
      decoder,
      self.tokenizer,
      chunk=LENGTH,
      batch_invariant=True,
      alternatives=1,
    )
    self.generator.engine = self.engine
    self.model = harness.make(self.generator, self.tokenizer, LENGTH)


@pytest.fixture(scope='module')
def world():
  return World()


def test_log_likelihoods_are_those_of_transformers(world, tmp_path):
  hugging_face.write(tmp_path / 'out', world.params, CONFIG)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  found = world.model.loglikelihood([Instance(*pair) for pair in PAIRS])
  for (context, continuation), (value, is_greedy) in zip(PAIRS, found):
    text = [0, *(context + continuation).encode()]
    with torch.inference_mode():
      logits_LV = theirs(torch.tensor([text])).logits[0, :-1]
    likely_LV = torch.log_softmax(logits_LV.double(), -1).numpy()
    # lm-eval moves a context's last spaces to the continuation.
    begin = len(context.rstrip())
    places = np.arange(begin, len(text) - 1)
    own_L = likely_LV[places, text[begin + 1 :]]
    assert value == pytest.approx(own_L.sum(), abs=1e-3)
    best_L = likely_LV[places].argmax(-1)
    assert is_greedy == (best_L == text[begin + 1 :]).all()


def test_bits_per_byte_are_those_of_held_out_text(world, tmp_path):
  harness.export(tmp_path / 'tasks', TEXTS)
  figures = harness.evaluate(world.model, [harness.TASK], tmp_path / 'tasks')
  corpus = text_lib.corpus(
    [documents_lib.Document(f'{n}', (text,)) for n, text in enumerate(TEXTS)],
    world.tokenizer,
    measured=True,
  )
  model = transformer.Transformer(CONFIG)
  read = held_out.evaluator(model, {'': corpus}, [1.0], LENGTH, 1, len(TEXTS))
  expected = read(world.params)['bits_per_byte']
  got = figures[harness.TASK]['bits_per_byte']
  assert got == pytest.approx(expected, abs=1e-6)
  with pytest.raises(ValueError, match=r'tasks=prose: .* has text'):
    harness.evaluate(world.model, ['prose'], tmp_path / 'tasks')


def test_tasks_get_the_metadata(world, tmp_path):
  harness.export(tmp_path / 'tasks', ['unread'])
  path = tmp_path / 'tasks' / 'text.yaml'
  data = path.read_text().split('output_type')[1]
  path.write_text(
    'task: text\ncustom_dataset: !function made.make\ntest_split: test\n'
    f'output_type{data}'
  )
  (tmp_path / 'tasks' / 'made.py').write_text(
    'import datasets\n'
    'def make(word, **_):\n'
    "  return {'test': datasets.Dataset.from_list([{'text': word}])}\n"
  )
  for word in 'the lamp is lit', 'qqqq zzzz':
    figures = harness.evaluate(
      *(world.model, [harness.TASK], tmp_path / 'tasks'),
      metadata=json.dumps({'word': word}),
    )
    want = world.model.loglikelihood_rolling([Instance(word)])[0]
    bits = -want / np.log(2) / len(word)
    assert figures[harness.TASK]['bits_per_byte'] == pytest.approx(bits)
  with pytest.raises(ValueError, match='must be an object'):
    harness.evaluate(world.model, [], tmp_path / 'tasks', metadata='3')


def test_a_text_is_generated_up_to_its_stop(world):
  (whole,) = world.model.generate_until(
    [Instance('Once', {'until': [], 'max_gen_toks': 24})]
  )
  assert len(whole) > 3
  (cut,) = world.model.generate_until(
    [Instance('Once', {'until': [whole[2]], 'max_gen_toks': 24})]
  )
  assert cut == whole[: whole.index(whole[2])]
  with pytest.raises(
    ValueError, match=r'generation_kwargs\.top_p=0\.5: must be'
  ):
    world.model.generate_until([Instance('Once', {'top_p': 0.5})])


def test_lm_evals_own_client_gets_the_same_of_a_server(
  world, tmp_path, monkeypatch
):
  from lm_eval.models import openai_completions

  # Greedy draws continue one of these as it goes on.
  prompts = [one * 3 for one in 'abcdefghijklmnop']
  greedy = sampling.Sampling(temperature=0)
  drawn = world.generator.generate(
    [request_lib.Request([*x.encode()], 1, greedy) for x in prompts]
  )
  texts = [(one, result.text) for one, result in zip(prompts, drawn)]
  likely = next(x for x in texts if len(x[1].encode()) == 1)
  pairs = [PAIRS[0], PAIRS[2], likely]
  # Its contexts open with no token of their own, but for those without text.
  tokens = [(None, [*a.encode()] or [0], [*b.encode()]) for a, b in pairs]
  scored = world.model._loglikelihood_tokens(tokens)
  rolling = world.model.loglikelihood_rolling([Instance(TEXTS[0][:40])])
  asks = {'until': ['q'], 'max_gen_toks': 9, 'temperature': 0}
  request = request_lib.Request([*b'Once'], 9, greedy, stop_strings=['q'])
  (said,) = world.generator.generate([request])
  serve.warm(world.engine)
  settings = settings_lib.Settings(folder=str(tmp_path), name='toy', open=True)
  context = serve.assemble_around(world.engine, world.tokenizer, settings)
  monkeypatch.setenv('OPENAI_API_KEY', 'none')
  try:
    with server_lib.running(api.app(context)) as server:
      client = openai_completions.LocalCompletionsAPI(
        base_url=f'{server.url}/v1/completions', model='toy', max_length=LENGTH
      )
      assert client.tokenizer_backend == 'remote'
      assert client.prefix_token_id == client.eot_token_id == 0
      found = client.loglikelihood([Instance(*pair) for pair in pairs])
      rolled = client.loglikelihood_rolling([Instance(TEXTS[0][:40])])
      (text,) = client.generate_until([Instance('Once', asks)])
  finally:
    context.close()
  for one, expected in zip(found, scored, strict=True):
    assert one[0] == pytest.approx(expected[0], abs=1e-4)
    assert one[1] == expected[1]
  assert {is_greedy for _, is_greedy in found} == {False, True}
  assert rolled == pytest.approx(rolling, abs=1e-4)
  assert text == said.text
