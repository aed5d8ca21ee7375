"""The chat page in a real browser, against the real server."""

import pathlib
import re

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from tests.serving import browser as browser_lib
from tests.serving import recording
from tests.serving import running

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
  assert {'client.js', 'page.js'} < found.keys()
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
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, pause=0.002) as server:
    yield server


@pytest.fixture
def visit(chromium, server):
  with browser_lib.visit(chromium, server.address) as visit:
    yield visit


def ask(visit, text):
  """Writes a message and returns the reply, once it is there."""
  count = visit.find('.message').count()
  visit.write(text)
  visit.counts(count + 2)
  return finished(visit)


def finished(visit):
  """Returns the last reply, once it has ended."""
  visit.expect('#composer .stop').to_be_hidden()
  visit.expect(visit.last.locator('.figures')).not_to_be_empty()
  return visit.texts()[-1]


def count_of(visit, place):
  return visit.find('.message').nth(place).locator('.count')


# What is pressed of the last message.
PRESSED = '.message >> nth=-1 >> .ratings [aria-pressed=true]'


def turn(visit, place, name):
  """Presses ‹ or › of a message."""
  visit.find('.message').nth(place).get_by_role('button', name=name).click()


@pytest.mark.slow
def test_a_model_s_settings_are_shown_and_used(chromium, server, monkeypatch):
  context = server.context
  drawn = {'temperature': 0.5, 'top_k': 7}
  monkeypatch.setattr(context, 'chat_sampling', drawn)
  requests = recording.requests(context, monkeypatch)
  with browser_lib.visit(chromium, server.address) as visit:
    visit.expect('#banner').to_contain_text('temperature 0.5, top k 7')
    visit.expect('#no-chats').to_be_hidden()
    visit.start_conversation('Mira')
    ask(visit, 'Who are you?')
    visit.expect('#composer').to_be_visible()
    assert [one.sampling.temperature for one in requests] == [0.5]
    monkeypatch.setattr(context, 'format', None)
    visit.page.reload()
    visit.expect('#composer').to_be_hidden()
    visit.page.goto(f'{server.address}/#home')
    visit.expect('#no-chats').to_contain_text('has no chat template')
    visit.expect('.gallery').to_be_hidden()


@pytest.mark.slow
@pytest.mark.parametrize(
  'viewport, options',
  [
    (browser_lib.DESKTOP, {}),
    (browser_lib.PHONE, {'has_touch': True, 'is_mobile': True}),
  ],
  ids=['desktop', 'phone'],
)
def test_a_first_conversation(chromium, server, tmp_path, viewport, options):
  options = {'viewport': viewport, **options}
  with browser_lib.visit(chromium, server.address, **options) as visit:
    for words in 'toy 1,234 parameters', 'of 1,234 parameters', 'unmoderated':
      visit.expect('#banner').to_contain_text(words)
    assert not visit.overflows() and not visit.unnamed()
    is_phone = bool(options.get('has_touch'))
    assert not (is_phone and visit.small())
    visit.start_conversation('Mira')

    # Two turns, of which the second finds what the first left behind.
    first = ask(visit, 'Who are you?')
    ask(visit, 'And what do you see?')
    figures = visit.last.locator('.figures').inner_text()
    reused, all_of = re.fullmatch(
      r'([\d,]+) of ([\d,]+) prompt tokens reused · first token after [\d.]+'
      r' m?s',
      figures,
    ).groups()
    assert int(all_of) > 200  # A token per byte.
    assert int(all_of) - int(reused) < 60  # All but what was just said.

    # Swipes: another candidate, and back.
    one = visit.texts()[-1]
    visit.expect(count_of(visit, 4)).to_have_text('1/1')
    turn(visit, 4, 'A new version')
    visit.expect(count_of(visit, 4)).to_have_text('2/2')
    two = finished(visit)
    assert one != two
    turn(visit, 4, 'Previous version')
    visit.shows(one)
    visit.expect(count_of(visit, 4)).to_have_text('1/2')

    # An edit is a sibling, and the conversation goes on from there.
    visit.edit(3, 'What do you hear?')
    assert not (is_phone and visit.small())
    visit.press('Save')
    visit.expect(count_of(visit, 3)).to_have_text('2/2')
    finished(visit)
    visit.expect(count_of(visit, 4)).to_have_text('1/1')
    turn(visit, 3, 'Previous version')
    said = visit.find('.message .text').nth(3)
    visit.expect(said).to_have_text('And what do you see?')
    visit.expect(count_of(visit, 4)).to_have_text('2/2')  # The newest of them.
    turn(visit, 4, 'Previous version')
    visit.shows(one)
    assert visit.texts()[2] == first
    assert not visit.overflows() and not visit.unnamed()
    assert not (is_phone and visit.small())
    visit.page.screenshot(path=tmp_path / 'chat.png')
    assert (tmp_path / 'chat.png').stat().st_size > 10_000

    # A reply is rated, otherwise, and what a person wrote is not.
    visit.press('Bad reply')
    visit.counts(1, PRESSED)
    visit.press('Wrongly refused')
    visit.expect(PRESSED).to_have_attribute('aria-label', 'Wrongly refused')
    for place in 0, 3:
      ratings = visit.find('.message').nth(place).locator('.ratings')
      visit.expect(ratings).to_be_hidden()

    # A reload, and another day.
    shown = visit.texts()
    visit.page.reload()
    visit.counts(5)
    assert visit.texts() == shown
    visit.expect(PRESSED).to_have_attribute('aria-label', 'Wrongly refused')
    visit.press('Wrongly refused')
    visit.counts(0, PRESSED)
    visit.page.goto('about:blank')
    visit.page.goto(server.address)
    visit.counts(5)
    assert visit.texts() == shown
    _delete(visit, server)


def _delete(visit, server):
  before = len(server.get('/v1/sessions')['data'])
  visit.press('Delete this conversation')
  visit.press('Keep it')
  visit.expect('#question').to_be_hidden()
  assert len(server.get('/v1/sessions')['data']) == before
  visit.press('Delete this conversation')
  visit.page.get_by_role('button', name='Delete', exact=True).click()
  visit.expect('#welcome').to_be_visible()
  assert len(server.get('/v1/sessions')['data']) == before - 1


@pytest.mark.slow
def test_the_characters_words_are_edited_and_greetings_swiped(visit):
  visit.start_conversation('Mira')
  text = visit.find('.message .text').first
  visit.expect(text).to_have_text('Good evening, User. The lamp is lit.')
  visit.expect(count_of(visit, 0)).to_have_text('1/3')
  turn(visit, 0, 'Next version')
  visit.expect(text).to_have_text('You came by boat?')
  turn(visit, 0, 'Next version')
  visit.expect(text).to_have_text('Mind the stairs.')
  forward = visit.find('.message').first.get_by_label('Next version')
  visit.expect(forward).to_be_disabled()  # Nobody asked for another greeting.
  visit.edit(-1, 'Mind the *dark* stairs.')
  visit.press('Save')
  visit.expect(text).to_have_text('Mind the dark stairs.')
  visit.expect(text.locator('em')).to_have_text('dark')
  visit.expect(count_of(visit, 0)).to_have_text('4/4')
  ask(visit, 'I will.')
  visit.page.reload()
  visit.expect(text).to_have_text('Mind the dark stairs.')


@pytest.mark.slow
def test_a_reply_goes_on_beside_what_it_was(visit, server):
  visit.start_conversation('Mira')
  visit.expect('.message .more').to_be_hidden()  # Of the greeting.
  first = ask(visit, 'Tell me of the sea')
  visit.press('Continue this reply')
  visit.expect(count_of(visit, 2)).to_have_text('2/2')
  longer = finished(visit)
  assert visit.find('.message').count() == 3
  assert longer.startswith(first) and longer != first
  turn(visit, 2, 'Previous version')
  visit.shows(first)
  ask(visit, 'And then?')
  # The last reply alone goes on.
  visit.expect(visit.find('.message').nth(2).locator('.more')).to_be_hidden()


@pytest.mark.slow
def test_stop_and_reload_in_the_middle_show_what_is_stored(chromium, tmp_path):
  with (
    running.server(tmp_path, pause=0.3) as server,
    browser_lib.visit(chromium, server.address) as visit,
  ):
    visit.start_conversation('Mira')
    visit.write('Tell me of the sea')
    visit.expect('.live .text').not_to_be_empty()
    visit.press('Stop the reply')
    remark = visit.last.locator('.remark')
    visit.expect(remark).to_have_text('This reply was stopped.')
    visit.counts(0, '.message.lost')
    part = visit.texts()[-1]
    assert 0 < len(part) < 64
    visit.press('Another reply')
    visit.expect('.live .text').not_to_be_empty()
    assert visit.find('.message').count() == 3  # In the other one's place.
    visit.find('#draft').fill('A thought for later')
    visit.page.reload()
    visit.counts(3)
    greeting = 'Good evening, User. The lamp is lit.'
    assert visit.texts()[:2] == [greeting, 'Tell me of the sea']
    visit.drafts('A thought for later')
    assert server.is_idle_soon(browser_lib.SECONDS)
    visit.page.reload()
    visit.expect(count_of(visit, 2)).to_have_text('2/2')
    turn(visit, 2, 'Previous version')
    visit.shows(part)


@pytest.mark.slow
def test_hostile_texts_are_shown_and_do_nothing(visit, server):
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
  visit.expect('#sheet-title').to_have_text(name)
  visit.expect('#sheet .description').to_have_text(everything)
  visit.expect('.dropped').to_contain_text('Left out of the card')
  assert HOSTILE[0] in visit.find('.dropped').inner_text()
  assert visit.page.title() == name
  visit.press('Start a conversation')
  visit.expect('.message .text').to_have_text(everything)
  ask(visit, everything)
  assert visit.texts()[1] == everything
  visit.edit(-1, everything)
  visit.press('Save')
  visit.shows(everything)
  turn(visit, 0, 'Next version')
  visit.counts(1)
  visit.expect('.message .text').to_have_text('\ufffddrawkcab\ufffd')
  visit.page.reload()
  visit.counts(1)
  for tag in 'img', 'iframe', 'script:not([src="/page.js"])', 'style', 'em':
    assert visit.find(f'body {tag}, head {tag}').count() == 0
  assert visit.find('a[href^="javascript:"]').count() == 0


@pytest.mark.slow
def test_macros_stand_as_names_in_gallery_and_sheet(visit):
  text = '{{char}} and <BOT> wait for {{ User }}; {{random:a,b}} stays.'
  shown = 'M$& and M$& wait for User; {{random:a,b}} stays.'
  card = {'name': 'Macro', 'nickname': 'M$&', 'description': text}
  data = card | {'creator_notes': text}
  visit.drop({'spec': 'chara_card_v3', 'spec_version': '3.0', 'data': data})
  for place in '#sheet .description', '#sheet .notes':
    visit.expect(place).to_have_text(shown)
  visit.page.get_by_role('link', name='Characters').click()
  item = visit.find('.character', has_text='Macro')
  visit.expect(item.locator('.description')).to_have_text(shown)


@pytest.mark.slow
def test_a_name_turns_no_text_around_it(visit):
  """An override in a name would show what stands behind it backwards."""
  visit.drop({'name': f'{ISOLATE_END}{OVERRIDE}Mallory', 'first_mes': 'Hm.'})
  shown = '\ufffd\ufffdMallory'
  visit.expect('#sheet-title').to_have_text(shown)
  visit.press('Start a conversation')
  visit.expect('#draft').to_have_attribute('placeholder', f'Write to {shown}')
  everything = visit.find('body').inner_text() + visit.page.title()
  labels = visit.page.evaluate(
    '() => [...document.querySelectorAll("[aria-label]")]'
    '.map((element) => element.ariaLabel).join()'
  )
  assert 'Mallory' in everything and 'Mallory' in labels
  assert not re.search(f'[{OVERRIDE}{ISOLATE_END}]', everything + labels)


@pytest.mark.slow
def test_a_card_in_a_png_is_chosen_with_the_file_button(visit, tmp_path):
  written = card_fields.Fields(
    name='Tolo', description='A small robot.', greeting='This one is Gerald.'
  )
  path = tmp_path / 'tolo.png'
  path.write_bytes(cards.to_png(written))
  visit.find('#card').set_input_files(path)
  visit.expect('#sheet-title').to_have_text('Tolo')
  visit.expect('#sheet .description').to_have_text('A small robot.')
  visit.expect('.dropped').to_be_hidden()
  visit.press('Start a conversation')
  visit.expect('.message .text').to_have_text('This one is Gerald.')
  visit.page.get_by_role('link', name='About this character').click()
  visit.press('Remove the character')
  visit.page.get_by_role('button', name='Delete', exact=True).click()
  visit.expect('#welcome').to_be_visible()
  visit.counts(0, '.character:has-text("Tolo")')
  # The conversation stays, with the version that it began with.
  visit.find('#conversations').get_by_text('Tolo').click()
  visit.expect('.message .text').to_have_text('This one is Gerald.')


@pytest.mark.slow
@pytest.mark.parametrize(
  'address', ['#session/%E0%A4%A', '#character/%E0%A4%A', '#session/']
)
def test_an_address_that_names_nothing_leads_home(chromium, server, address):
  with browser_lib.visit(chromium, f'{server.address}', (404,)) as visit:
    visit.page.goto(f'{server.address}/{address}')
    visit.tells('This is not there')
    visit.expect('#welcome').to_be_visible()
    assert visit.page.url.endswith('#home')
    visit.start_conversation('Mira')


@pytest.mark.slow
def test_the_keyboard_alone_is_enough(visit):
  keyboard = visit.page.keyboard
  visit.expect(visit.find('.character').first).to_be_visible()
  _tab_to(visit, '.character')
  keyboard.press('Enter')
  visit.expect('#sheet-title').to_be_focused()
  _tab_to(visit, '[data-action=start]')
  keyboard.press('Enter')
  visit.expect('#draft').to_be_focused()
  keyboard.type('One line')
  keyboard.press('Shift+Enter')
  keyboard.type('and another')
  keyboard.press('Enter')
  visit.counts(3)
  finished(visit)
  assert visit.texts()[1] == 'One line\nand another'
  visit.expect('#announcer').not_to_be_empty()  # To a screen reader.
  for action, count in ('next', '2/2'), ('previous', '1/2'), ('next', '2/2'):
    visit.last.locator(f'[data-action={action}]').focus()
    keyboard.press('Enter')
    visit.expect(count_of(visit, 2)).to_have_text(count)
  visit.expect(':focus').to_have_attribute('data-action', 'next')
  visit.last.locator('.edit').focus()
  keyboard.press('Enter')
  visit.expect('.editor textarea').to_be_focused()
  keyboard.press('Escape')
  visit.counts(0, '.editor')
  visit.expect('#draft').to_be_focused()


def _tab_to(visit, selector):
  for _ in range(30):
    if visit.find(f'{selector}:focus').count():
      return
    visit.page.keyboard.press('Tab')
  raise AssertionError(f'{selector} is out of the keyboard’s reach')
