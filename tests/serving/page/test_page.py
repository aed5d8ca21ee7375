"""The chat page in a real browser, against the real server."""

import pathlib
import re

import pytest

from tests.serving import browser as browser_lib
from tests.serving import recording

pytestmark = pytest.mark.flaky(reruns=2)

PAGE = pathlib.Path(__file__).parents[3] / 'kaiju_jax/serving/page'
HOSTILE = (
  '<script>window.ran = 1</script>',
  '<img src=x onerror="window.ran = 1">',
  '<a href="javascript:window.ran = 1">me</a>',
  '<style>@import "http://evil.example/x.css";</style>',
  '"><iframe src="http://evil.example/"></iframe>',
)
OVERRIDE, ISOLATE_END = '\u202e', '\u2069'


def sources(*kinds):
  return {
    path.name: path.read_text()
    for path in PAGE.iterdir()
    if path.suffix in kinds
  }


# The files.


def test_no_script_makes_markup_or_code_of_text():
  ways = (
    r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc'
    r'|DOMParser|createContextualFragment|\beval\b|new Function|javascript:'
  )
  found = {
    name: re.findall(ways, text) for name, text in sources('.js').items()
  }
  assert set(found) == {
    'client.js',
    'conversation.js',
    'drawing.js',
    'page.js',
  }
  assert not any(found.values()), found


def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline():
  (html,) = sources('.html').values()
  assert not re.findall(r'<style|\sstyle=|\son\w+=|<script(?! type)', html)
  everything = ''.join(sources('.html', '.js', '.css').values())
  elsewhere = re.findall(r"""//[\w.]+\.\w+[^\s'")]*""", everything)
  assert set(elsewhere) == {'//www.w3.org/2000/svg'}  # A name, never fetched.
  assert not re.findall(r'url\(|@import|import\(', everything)


# In a browser.


@pytest.fixture(scope='module')
def chromium():
  with browser_lib.chromium() as browser:
    yield browser


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  running = pytest.importorskip('tests.serving.running')
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, pause=0.002) as server:
    yield server


@pytest.fixture
def visit(chromium, server):
  with browser_lib.visit(chromium, server.address) as visit:
    yield visit


@pytest.fixture
def expect():
  return pytest.importorskip('playwright.sync_api').expect


def ask(visit, expect, text):
  """Writes a message and returns the reply, once it is there."""
  count = visit.find('.message').count()
  visit.write(text)
  expect(visit.find('.message')).to_have_count(count + 2)
  return finished(visit, expect)


def finished(visit, expect):
  """Returns the last reply, once it has ended."""
  expect(visit.find('#composer .stop')).to_be_hidden()
  expect(visit.find('.message').last.locator('.figures')).not_to_be_empty()
  return visit.texts()[-1]


def count_of(visit, place):
  return visit.find('.message').nth(place).locator('.count')


def pressed(visit):
  return visit.find('.message').last.locator('.ratings [aria-pressed=true]')


def turn(visit, place, name):
  """Presses ‹ or › of a message."""
  visit.find('.message').nth(place).get_by_role('button', name=name).click()


@pytest.mark.slow
def test_a_model_s_settings_are_shown_and_used(
  chromium, server, expect, monkeypatch
):
  context = server.context
  monkeypatch.setattr(context, 'sampling', {'temperature': 0.5, 'top_k': 7})
  requests = recording.requests(context, monkeypatch)
  with browser_lib.visit(chromium, server.address) as visit:
    expect(visit.find('#banner')).to_contain_text('temperature 0.5, top k 7')
    expect(visit.find('#no-chats')).to_be_hidden()
    visit.start_conversation('Mira')
    ask(visit, expect, 'Who are you?')
    expect(visit.find('#composer')).to_be_visible()
    assert [one.sampling.temperature for one in requests] == [0.5]
    monkeypatch.setattr(context, 'format', None)
    visit.page.reload()
    expect(visit.find('#composer')).to_be_hidden()
    visit.page.goto(f'{server.address}/#home')
    expect(visit.find('#no-chats')).to_contain_text('has no chat template')
    expect(visit.find('.gallery')).to_be_hidden()


@pytest.mark.slow
@pytest.mark.parametrize(
  'viewport, options',
  [
    (browser_lib.DESKTOP, {}),
    (browser_lib.PHONE, {'has_touch': True, 'is_mobile': True}),
  ],
  ids=['desktop', 'phone'],
)
def test_a_first_conversation(
  chromium, server, expect, tmp_path, viewport, options
):
  options = {'viewport': viewport, **options}
  with browser_lib.visit(chromium, server.address, **options) as visit:
    banner = visit.find('#banner')
    expect(banner).to_contain_text('toy 1,234 parameters')
    expect(banner).to_contain_text('of 1,234 parameters says is what it is.')
    expect(banner).to_contain_text('unmoderated')
    assert not visit.overflows() and not visit.unnamed()
    is_phone = bool(options.get('has_touch'))
    assert not (is_phone and visit.small())
    visit.start_conversation('Mira')

    # Two turns, of which the second finds what the first left behind.
    first = ask(visit, expect, 'Who are you?')
    ask(visit, expect, 'And what do you see?')
    figures = visit.find('.message').last.locator('.figures').inner_text()
    reused, all_of = re.fullmatch(
      r'([\d,]+) of ([\d,]+) prompt tokens reused · first token after [\d.]+'
      r' m?s',
      figures,
    ).groups()
    assert int(all_of) > 200  # A token per byte.
    assert int(all_of) - int(reused) < 60  # All but what was just said.

    # Swipes: another candidate, and back.
    one = visit.texts()[-1]
    expect(count_of(visit, 4)).to_have_text('1/1')
    turn(visit, 4, 'A new version')
    expect(count_of(visit, 4)).to_have_text('2/2')
    two = finished(visit, expect)
    assert one != two
    turn(visit, 4, 'Previous version')
    expect(visit.find('.message .text').last).to_have_text(one)
    expect(count_of(visit, 4)).to_have_text('1/2')

    # An edit is a sibling, and the conversation goes on from there.
    edit = visit.find('.message').nth(3).locator('.edit')
    edit.click()
    assert not (is_phone and visit.small())
    visit.find('.editor textarea').fill('What do you hear?')
    visit.press('Save')
    expect(count_of(visit, 3)).to_have_text('2/2')
    finished(visit, expect)
    expect(count_of(visit, 4)).to_have_text('1/1')
    turn(visit, 3, 'Previous version')
    expect(visit.find('.message .text').nth(3)).to_have_text(
      'And what do you see?'
    )
    expect(count_of(visit, 4)).to_have_text('2/2')  # The newest of them.
    turn(visit, 4, 'Previous version')
    expect(visit.find('.message .text').last).to_have_text(one)
    assert visit.texts()[2] == first
    assert not visit.overflows() and not visit.unnamed()
    assert not (is_phone and visit.small())
    visit.page.screenshot(path=tmp_path / 'chat.png')
    assert (tmp_path / 'chat.png').stat().st_size > 10_000

    # A reply is rated, otherwise, and what a person wrote is not.
    visit.press('Bad reply')
    expect(pressed(visit)).to_have_count(1)
    visit.press('Wrongly refused')
    expect(pressed(visit)).to_have_attribute('aria-label', 'Wrongly refused')
    expect(visit.find('.message').first.locator('.ratings')).to_be_hidden()
    expect(visit.find('.message').nth(3).locator('.ratings')).to_be_hidden()

    # A reload, and another day.
    shown = visit.texts()
    visit.page.reload()
    expect(visit.find('.message')).to_have_count(5)
    assert visit.texts() == shown
    expect(pressed(visit)).to_have_attribute('aria-label', 'Wrongly refused')
    visit.press('Wrongly refused')
    expect(pressed(visit)).to_have_count(0)
    visit.page.goto('about:blank')
    visit.page.goto(server.address)
    expect(visit.find('.message')).to_have_count(5)
    assert visit.texts() == shown
    _delete(visit, expect, server)


def _delete(visit, expect, server):
  before = len(server.get('/v1/sessions')['data'])
  visit.press('Delete this conversation')
  visit.press('Keep it')
  expect(visit.find('#question')).to_be_hidden()
  assert len(server.get('/v1/sessions')['data']) == before
  visit.press('Delete this conversation')
  visit.page.get_by_role('button', name='Delete', exact=True).click()
  expect(visit.find('#welcome')).to_be_visible()
  assert len(server.get('/v1/sessions')['data']) == before - 1


@pytest.mark.slow
def test_the_characters_words_are_edited_and_greetings_swiped(visit, expect):
  visit.start_conversation('Mira')
  text = visit.find('.message .text').first
  expect(text).to_have_text('Good evening, User. The lamp is lit.')
  expect(count_of(visit, 0)).to_have_text('1/3')
  turn(visit, 0, 'Next version')
  expect(text).to_have_text('You came by boat?')
  turn(visit, 0, 'Next version')
  expect(text).to_have_text('Mind the stairs.')
  forward = visit.find('.message').first.get_by_label('Next version')
  expect(forward).to_be_disabled()  # Nobody asked for another greeting.
  visit.press('Edit this message')
  visit.find('.editor textarea').fill('Mind the *dark* stairs.')
  visit.press('Save')
  expect(text).to_have_text('Mind the dark stairs.')
  expect(text.locator('em')).to_have_text('dark')
  expect(count_of(visit, 0)).to_have_text('4/4')
  ask(visit, expect, 'I will.')
  visit.page.reload()
  expect(text).to_have_text('Mind the dark stairs.')


@pytest.mark.slow
def test_a_reply_goes_on_beside_what_it_was(visit, server, expect):
  visit.start_conversation('Mira')
  expect(visit.find('.message .more')).to_be_hidden()  # Of the greeting.
  first = ask(visit, expect, 'Tell me of the sea')
  visit.press('Continue this reply')
  expect(count_of(visit, 2)).to_have_text('2/2')
  longer = finished(visit, expect)
  assert visit.find('.message').count() == 3
  assert longer.startswith(first) and longer != first
  turn(visit, 2, 'Previous version')
  expect(visit.find('.message .text').last).to_have_text(first)
  ask(visit, expect, 'And then?')
  # The last reply alone goes on.
  expect(visit.find('.message').nth(2).locator('.more')).to_be_hidden()


@pytest.mark.slow
def test_stop_and_reload_in_the_middle_show_what_is_stored(
  chromium, tmp_path, expect
):
  running = pytest.importorskip('tests.serving.running')
  with (
    running.server(tmp_path, pause=0.3) as server,
    browser_lib.visit(chromium, server.address) as visit,
  ):
    visit.start_conversation('Mira')
    visit.write('Tell me of the sea')
    expect(visit.find('.live .text')).not_to_be_empty()
    visit.press('Stop the reply')
    last = visit.find('.message').last
    expect(last.locator('.remark')).to_have_text('This reply was stopped.')
    part = visit.texts()[-1]
    assert 0 < len(part) < 64
    visit.press('Another reply')
    expect(visit.find('.live .text')).not_to_be_empty()
    assert visit.find('.message').count() == 3  # In the other one's place.
    visit.page.reload()
    expect(visit.find('.message')).to_have_count(3)
    assert visit.texts()[:2] == ['Good evening, User. The lamp is lit.'] + [
      'Tell me of the sea'
    ]
    assert server.is_idle_soon(browser_lib.SECONDS)
    visit.page.reload()
    expect(count_of(visit, 2)).to_have_text('2/2')
    turn(visit, 2, 'Previous version')
    expect(visit.find('.message .text').last).to_have_text(part)


@pytest.mark.slow
def test_hostile_texts_are_shown_and_do_nothing(visit, server, expect):
  name = f'Eve {HOSTILE[1]}'
  everything = '\n'.join(HOSTILE)
  visit.drop(
    {
      'spec': 'chara_card_v2',
      'spec_version': '2.0',
      'data': {
        'name': name,
        'description': everything,
        'first_mes': everything,
        'alternate_greetings': [f'{OVERRIDE}drawkcab{ISOLATE_END}'],
        'creator': HOSTILE[0],
        'creator_notes': HOSTILE[2],
        'tags': list(HOSTILE),
        'extensions': {HOSTILE[1]: HOSTILE[0]},
        HOSTILE[0]: HOSTILE[1],
      },
    }
  )
  expect(visit.find('#sheet-title')).to_have_text(name)
  expect(visit.find('#sheet .description')).to_have_text(everything)
  expect(visit.find('.dropped')).to_contain_text('Left out of the card')
  assert HOSTILE[0] in visit.find('.dropped').inner_text()
  assert visit.page.title() == name
  visit.press('Start a conversation')
  expect(visit.find('.message .text')).to_have_text(everything)
  ask(visit, expect, everything)
  assert visit.texts()[1] == everything
  visit.find('.message').last.hover()
  visit.press('Edit this message')
  visit.find('.editor textarea').fill(everything)
  visit.press('Save')
  expect(visit.find('.message .text').last).to_have_text(everything)
  turn(visit, 0, 'Next version')
  expect(visit.find('.message')).to_have_count(1)
  expect(visit.find('.message .text')).to_have_text('\ufffddrawkcab\ufffd')
  visit.page.reload()
  expect(visit.find('.message')).to_have_count(1)
  for tag in 'img', 'iframe', 'script:not([src="/page.js"])', 'style', 'em':
    assert visit.find(f'body {tag}, head {tag}').count() == 0
  assert visit.find('a[href^="javascript:"]').count() == 0


@pytest.mark.slow
def test_macros_stand_as_names_in_gallery_and_sheet(visit, expect):
  text = '{{char}} and <BOT> wait for {{ User }}; {{random:a,b}} stays.'
  shown = 'M$& and M$& wait for User; {{random:a,b}} stays.'
  card = {'name': 'Macro', 'nickname': 'M$&', 'description': text}
  visit.drop(
    {
      'spec': 'chara_card_v3',
      'spec_version': '3.0',
      'data': {**card, 'creator_notes': text},
    }
  )
  expect(visit.find('#sheet .description')).to_have_text(shown)
  expect(visit.find('#sheet .notes')).to_have_text(shown)
  visit.page.get_by_role('link', name='Characters').click()
  item = visit.find('.character', has_text='Macro')
  expect(item.locator('.description')).to_have_text(shown)


@pytest.mark.slow
def test_a_name_turns_no_text_around_it(visit, server, expect):
  """An override in a name would show what stands behind it backwards."""
  visit.drop({'name': f'{ISOLATE_END}{OVERRIDE}Mallory', 'first_mes': 'Hm.'})
  expect(visit.find('#sheet-title')).to_have_text('\ufffd\ufffdMallory')
  visit.press('Start a conversation')
  area = visit.find('#draft')
  expect(area).to_have_attribute('placeholder', 'Write to \ufffd\ufffdMallory')
  everything = visit.find('body').inner_text() + visit.page.title()
  labels = visit.page.evaluate(
    '() => [...document.querySelectorAll("[aria-label]")]'
    '.map((element) => element.ariaLabel).join()'
  )
  assert 'Mallory' in everything and 'Mallory' in labels
  assert not re.search(f'[{OVERRIDE}{ISOLATE_END}]', everything + labels)


@pytest.mark.slow
def test_a_card_in_a_png_is_chosen_with_the_file_button(
  visit, tmp_path, expect
):
  cards = pytest.importorskip('kaiju_jax.characters.cards.cards')
  card_fields = pytest.importorskip('kaiju_jax.characters.cards.card_fields')
  written = card_fields.Fields(
    name='Tolo', description='A small robot.', greeting='This one is Gerald.'
  )
  path = tmp_path / 'tolo.png'
  path.write_bytes(cards.to_png(written))
  visit.find('#card').set_input_files(path)
  expect(visit.find('#sheet-title')).to_have_text('Tolo')
  expect(visit.find('#sheet .description')).to_have_text('A small robot.')
  expect(visit.find('.dropped')).to_be_hidden()
  visit.press('Start a conversation')
  expect(visit.find('.message .text')).to_have_text('This one is Gerald.')
  visit.page.get_by_role('link', name='About this character').click()
  visit.press('Remove the character')
  visit.page.get_by_role('button', name='Delete', exact=True).click()
  expect(visit.find('#welcome')).to_be_visible()
  expect(visit.find('.character', has_text='Tolo')).to_have_count(0)
  # The conversation stays, with the version that it began with.
  visit.find('#conversations').get_by_text('Tolo').click()
  expect(visit.find('.message .text')).to_have_text('This one is Gerald.')


@pytest.mark.slow
@pytest.mark.parametrize(
  'address', ['#session/%E0%A4%A', '#character/%E0%A4%A', '#session/']
)
def test_an_address_that_names_nothing_leads_home(
  chromium, server, expect, address
):
  with browser_lib.visit(chromium, f'{server.address}', (404,)) as visit:
    visit.page.goto(f'{server.address}/{address}')
    expect(visit.find('#notice')).to_contain_text('This is not there')
    expect(visit.find('#welcome')).to_be_visible()
    assert visit.page.url.endswith('#home')
    visit.start_conversation('Mira')


@pytest.mark.slow
def test_the_keyboard_alone_is_enough(visit, expect):
  keyboard = visit.page.keyboard
  focused = visit.find(':focus')
  expect(visit.find('.character').first).to_be_visible()
  _tab_to(visit, '.character')
  keyboard.press('Enter')
  expect(visit.find('#sheet-title')).to_be_focused()
  _tab_to(visit, '[data-action=start]')
  keyboard.press('Enter')
  expect(visit.find('#draft')).to_be_focused()
  keyboard.type('One line')
  keyboard.press('Shift+Enter')
  keyboard.type('and another')
  keyboard.press('Enter')
  expect(visit.find('.message')).to_have_count(3)
  finished(visit, expect)
  assert visit.texts()[1] == 'One line\nand another'
  announced = visit.find('#announcer')
  expect(announced).not_to_be_empty()  # The reply, to a screen reader.
  visit.find('.message').last.locator('[data-action=next]').focus()
  keyboard.press('Enter')
  expect(count_of(visit, 2)).to_have_text('2/2')
  visit.find('.message').last.locator('[data-action=previous]').focus()
  keyboard.press('Enter')
  expect(count_of(visit, 2)).to_have_text('1/2')
  visit.find('.message').last.locator('[data-action=next]').focus()
  keyboard.press('Enter')
  expect(count_of(visit, 2)).to_have_text('2/2')
  expect(focused).to_have_attribute('data-action', 'next')
  visit.find('.message').last.locator('.edit').focus()
  keyboard.press('Enter')
  expect(visit.find('.editor textarea')).to_be_focused()
  keyboard.press('Escape')
  expect(visit.find('.editor')).to_have_count(0)
  expect(visit.find('#draft')).to_be_focused()


def _tab_to(visit, selector):
  for _ in range(30):
    if visit.find(f'{selector}:focus').count():
      return
    visit.page.keyboard.press('Tab')
  raise AssertionError(f'{selector} is out of the keyboard’s reach')
