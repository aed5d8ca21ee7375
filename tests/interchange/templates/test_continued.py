"""A reply that goes on, in the format of a folder's chat template."""

import numpy as np
import pytest
import tokenizers

from kaiju_jax.characters.prompts import continued
from kaiju_jax.characters.prompts import prompt
from tests.interchange.templates import shapes

NAMES = 'chatml', 'turns', 'last', 'thinking'
TALKS = (
  [('user', 'Hello you')],
  [('system', 'Be brief.'), ('user', 'two')],
  [('user', 'Hello'), ('assistant', 'tea'), ('user', 'more?')],
)
TEXTS = 'Well', 'The rain the', ' So ', 'Hello \n\n', 'a\n\nb', 'Grüße'


@pytest.fixture(scope='module')
def formats(tmp_path_factory):
  """Returns the formats of `NAMES`."""
  path = shapes.write_folder(tmp_path_factory.mktemp('folder'))
  return {
    name: shapes.read_folder(path, shapes.TEMPLATES[name])[0].format
    for name in NAMES
  }


def render(name, talk, text):
  """Returns what Jinja writes up to a last reply's text, by its spaces."""
  rendered = shapes.oracle(shapes.TEMPLATES[name])(
    [*talk, ('assistant', text)], is_open=False
  )
  inner = text.strip()
  end = rendered.rindex(inner) + len(inner)
  return rendered[:end] + text[len(text.rstrip()) :]


def go_on(format, talk, text, tokens=None):
  turns = [prompt.Turn(*one) for one in talk]
  begun = prompt.Turn('assistant', text, tokens)
  opened_L = prompt.open_prefix(format)
  return continued.continuation(opened_L, turns, begun, format, 1000)


@pytest.mark.parametrize('name', NAMES)
def test_a_prompt_ends_with_the_text_as_the_template_writes_it(formats, name):
  format = formats[name]
  whole = tokenizers.Tokenizer.from_str(shapes.byte_tokenizer())
  compared = 0
  for talk in TALKS:
    asked = shapes.oracle(shapes.TEMPLATES[name])(talk)
    if format.prompt(talk).tolist() != whole.encode(asked).ids:
      continue  # Our prompt is not the template's own.
    if not render(name, talk, 'Well').startswith(asked):
      continue  # The template writes another prompt before a reply it has.
    compared += 1
    for text in TEXTS:
      made, begun = go_on(format, talk, text)
      wanted = whole.encode(render(name, talk, text)).ids
      assert made.tokens.tolist() == wanted, (talk, text)
      assert made.tokens[len(wanted) - len(begun.tokens) :].tolist() == (
        begun.tokens.tolist()
      )
  assert compared


@pytest.mark.parametrize('name', NAMES)
def test_what_the_model_drew_stands_behind_the_opening_as_it_was(formats, name):
  format, rng = formats[name], np.random.default_rng(0)
  talk = TALKS[2]
  opened_L = prompt.conversation(
    prompt.open_prefix(format),
    [prompt.Turn(*one) for one in talk],
    format,
    1000,
  ).tokens
  drawn_L = rng.integers(0, 256, 9)
  for end in (), (format.stop_tokens[0],):
    made, begun = go_on(format, talk, 'any', (*drawn_L, *end))
    kept = [x for x in drawn_L.tolist() if x not in format.structure]
    assert made.tokens.tolist() == [*opened_L.tolist(), *kept]
    assert (begun.kept, begun.count) == (tuple(kept), len(kept))
