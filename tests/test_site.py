"""A dead link fails the site, with the settings of `make site`."""

import pytest

from tests import pages

build = pytest.importorskip(
  'mkdocs.commands.build', reason='mkdocs is in the extra docs'
)
config_lib = pytest.importorskip('mkdocs.config')
exceptions = pytest.importorskip('mkdocs.exceptions')


@pytest.mark.parametrize(
  ('link', 'dead'),
  [
    ('docs/b.md', False),
    ('docs/b.md#a_b--what', False),  # As on GitHub.
    ('kaiju_jax/c.py', False),
    ('docs/d.md', True),
    ('docs/b.md#gone', True),
    ('kaiju_jax/d.py', True),
  ],
)
def test_a_dead_link_or_heading_fails(tmp_path, link, dead):
  for name, text in {
    'README.md': f'# Home\n\n[there]({link})\n',
    'docs/b.md': '# B\n\n## `a_b` — what?\n',
    'kaiju_jax/c.py': '',
  }.items():
    (tmp_path / 'pages' / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'pages' / name).write_text(text)
  config = config_lib.load_config(
    str(pages.ROOT / 'mkdocs.yml'),
    docs_dir=str(tmp_path / 'pages'),
    site_dir=str(tmp_path / 'site'),
    plugins=[],
    strict=True,
  )
  try:
    build.build(config)
  except exceptions.Abort:
    assert dead
  else:
    assert not dead and (tmp_path / 'site' / 'docs' / 'b').is_dir()
