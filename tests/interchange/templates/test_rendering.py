"""The process that renders: limits, and no way out of it."""

import pytest

from kaiju_jax.interchange.templates import rendering
from tests.interchange.templates import shapes

CHAT = rendering.Chat((('user', 'hi'),))


def _render(template):
  (text,) = rendering.Renderer(template, {}, shapes.NOW).render([CHAT])
  return text


def test_a_chat_is_rendered_in_another_process(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('SECRET', 'planted')
  assert _render(shapes.TEMPLATES['chatml']) == (
    '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n'
  )
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'template, words',
  [
    ("{{ 'a' * 10**10 }}", 'memory'),
    (
      "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
      '{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}',
      'memory',
    ),
    ("{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", 'characters'),
    ("{{ '%10000000000d' % 1 }}", 'memory'),
    ('{{ range(10**9) | list }}', 'Range too big'),
    ('{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}', 'recursion'),
    ('{{ ' + '(' * 9999 + '1' + ')' * 9999 + ' }}', 'recursion'),
    ("{% include '/etc/passwd' %}", 'no loader'),
    ("{{ ''.__class__.__mro__ }}", 'unsafe'),
    ('{{ messages.append(1) }}', 'unsafe'),
    ('{{ cycler.__init__.__globals__ }}', 'unsafe'),
  ],
)
def test_a_bomb_is_refused(template, words):
  assert words in _render(template).reason


@pytest.mark.slow
def test_a_loop_without_end_is_ended():
  loop = '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}'
  with pytest.raises(ValueError, match='2 s of processor time'):
    _render(loop + '{% endfor %}')


def test_a_long_template_is_refused():
  with pytest.raises(ValueError, match='characters: at most'):
    _render('a' * 300_000)
