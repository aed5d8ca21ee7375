"""The Markdown pages and their code blocks, for every test that reads them."""

import functools
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]


class Block(NamedTuple):
  """A fenced block: its page from the root, its first line there, its text."""

  page: str
  line: int
  text: str

  def run(self):
    """Runs a Python block here; a traceback names the page and its line."""
    padded = '\n' * (self.line - 1) + self.text
    exec(compile(padded, self.page, 'exec'), {'__name__': '__main__'})


@functools.cache
def pages() -> dict[str, str]:
  """Returns each page's text by its path from the root."""
  paths = [
    *ROOT.glob('*.md'),
    *(ROOT / 'docs').rglob('*.md'),
    *(ROOT / 'experiments/results').glob('*.md'),
  ]
  return {str(p.relative_to(ROOT)): p.read_text() for p in sorted(paths)}


@functools.cache
def blocks(language: str) -> tuple[Block, ...]:
  """Returns all pages' blocks in a language, as the fence names it."""
  return tuple(
    Block(page, text[: found.start(1)].count('\n') + 1, found[1])
    for page, text in pages().items()
    for found in re.finditer(rf'^```{language}\n(.*?)^```', text, re.S | re.M)
  )


def block_with(words: str) -> Block:
  """Returns the one Python block that contains these words."""
  (found,) = [block for block in blocks('python') if words in block.text]
  return found


# Three blocks run elsewhere: `test_wheel.py` trains in an environment that has
# only the wheel, `wire/test_squinch_alone.py` runs the loop of another trainer,
# and `serving/page/test_first_minute.py` has a server for the client.
TEN_LINES = block_with('train.train(')
OTHER_TRAINER = block_with('squinch.transform')
CLIENT = block_with('openai.OpenAI')


def without_code(text: str) -> str:
  """Returns a page's text without its fenced blocks."""
  return re.sub(r'^```.*?^```', '', text, flags=re.S | re.M)


def anchors(text: str) -> set[str]:
  """Returns the anchors that GitHub makes of a page's headings."""
  found = set()
  for heading in re.findall(r'^#+ +(.*)$', without_code(text), re.M):
    heading = re.sub(r'\]\([^)]*\)', '', heading).lower().strip()
    name = re.sub(r'[^\w\- ]', '', heading).replace(' ', '-')
    unique = name
    for n in range(1, 100):
      if unique not in found:
        break
      unique = f'{name}-{n}'
    found.add(unique)
  return found


def links(text: str) -> list[str]:
  """Returns the relative targets that a page links to, pictures too."""
  found = re.findall(r'\]\(([^)\s]+)\)', without_code(text))
  return [one for one in found if not re.match(r'https?:|mailto:', one)]
