"""The pages' Python blocks run as they stand, and no relative link is dead."""

import contextlib
import io
import os
import re

import pytest

from tests import pages

ELSEWHERE = pages.TEN_LINES, pages.OTHER_TRAINER, pages.CLIENT


@pytest.mark.parametrize(
  'block',
  [
    # These compile a model's programs: the others take a second or two.
    pytest.param(
      block,
      id=f'{block.page}:{block.line}',
      marks=[pytest.mark.slow]
      * ('init_params' in block.text or 'play.texts' in block.text),
    )
    for block in pages.blocks('python')
    if block not in ELSEWHERE
  ],
)
def test_block_runs(block, tmp_path, monkeypatch):
  """In this process, which has the eight devices that a block may ask for."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(os, 'environ', dict(os.environ))
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    block.run()
  assert printed.getvalue()


def test_a_block_that_fails_names_its_page_and_line():
  block = pages.Block('docs/some.md', 7, 'a = 1\nb\n')
  with pytest.raises(NameError) as raised:
    block.run()
  last = raised.traceback[-1]
  assert (str(last.path), last.lineno) == ('docs/some.md', 7)  # From 0.


def test_every_make_target_and_extra_that_a_page_names_exists():
  makefile = (pages.ROOT / 'Makefile').read_text().replace('\\\n', ' ')
  targets = set(re.search(r'^\.PHONY: (.*)$', makefile, re.M)[1].split())
  setup = (pages.ROOT / 'setup.cfg').read_text()
  section = re.search(
    r'^\[options\.extras_require\]\n(.*?)^\[', setup, re.S | re.M
  )
  extras = set(re.findall(r'^([\w-]+) ?=', section[1], re.M))
  commands = '\n'.join(block.text for block in pages.blocks('bash'))
  for target in re.findall(r'^ *make ([a-z-]+)', commands, re.M):
    assert target in targets, target
  named = re.findall(r"'\.\[([\w,-]+)\]'", '\n'.join(pages.pages().values()))
  assert named
  for extra in ','.join(named).split(','):
    assert extra in extras, extra


@pytest.mark.parametrize('page', pages.pages())
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
  dead = [
    link for link in pages.links(pages.pages()[page]) if dangles(page, link)
  ]
  assert not dead


def dangles(page, link):
  path, _, anchor = link.partition('#')
  target = (pages.ROOT / page).parent / path if path else pages.ROOT / page
  if not target.exists():
    return True
  return bool(anchor) and anchor not in pages.anchors(target.read_text())


@pytest.mark.parametrize(
  'link, dead',
  [
    ('rooms.md', False),
    ('glossary.md#letters', False),
    ('../README.md#three-results', False),
    ('rooms.md#no-such-heading', True),
    ('no_such_page.md', True),
    ('README.md', False),
    ('../docs/../LICENSE', False),
    ('kaiju_jax/model/layers.py', True),
  ],
)
def test_a_planted_dead_link_is_found(link, dead):
  assert dangles('docs/README.md', link) == dead


def test_headings_become_anchors_as_on_github():
  text = '# To and from\n## `a_b` — what?\n## Twice\n```\n# no\n```\n## Twice\n'
  assert pages.anchors(text) == {'to-and-from', 'a_b--what', 'twice', 'twice-1'}


def test_readme_is_short_and_says_early_what_no_device_has_run():
  lines = pages.pages()['README.md'].splitlines()
  assert len(lines) <= 200
  assert 'GPU or TPU has run this code' in ' '.join(lines[:10])


def test_every_page_of_docs_is_in_its_index():
  index = pages.links(pages.pages()['docs/README.md'])
  for page in pages.pages():
    if page.startswith('docs/') and page != 'docs/README.md':
      assert page.removeprefix('docs/') in index
