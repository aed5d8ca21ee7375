"""The page where the server refuses, breaks off, or goes away.

Nothing that was typed is ever lost, and every failure is told in words.
"""

import pytest

from tests.serving import browser as browser_lib
from tests.serving import fake_api
from tests.serving import trivial

pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=2)]

CHAT = '/v1/chat/completions'
NOW = 1_800_000_000  # Seconds.
Reply = fake_api.Reply


@pytest.fixture(scope='module')
def chromium():
  with browser_lib.chromium() as browser:
    yield browser


@pytest.fixture
def fake():
  with fake_api.serving() as fake:
    fake.add_character('Mira', greeting='The lamp is lit.')
    yield fake


@pytest.fixture
def visit(chromium, fake):
  expected = (0, 400, 401, 404, 429, 503)
  with browser_lib.visit(chromium, fake.address, expected) as visit:
    yield visit


@pytest.fixture
def expect():
  return pytest.importorskip('playwright.sync_api').expect


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(
  fake, visit, expect
):
  visit.start_conversation('Mira')
  visit.page.clock.set_fixed_time(NOW)
  fake.refuse(CHAT, 429, 'eight wait already.', {'Retry-After': '2'})
  visit.write('Are you there?')
  notice = visit.find('#notice')
  expect(notice).to_contain_text('The server is busy. eight wait already.')
  expect(visit.find('#draft')).to_have_value('Are you there?')
  again = visit.page.get_by_role('button', name='Try again')
  expect(again).to_have_text('Try again in 2 s')
  expect(again).to_be_disabled()
  visit.page.clock.set_fixed_time(NOW + 1)
  expect(again).to_have_text('Try again in 1 s')
  expect(again).to_be_disabled()
  visit.page.clock.set_fixed_time(NOW + 2)
  expect(again).to_be_enabled()
  fake.replies.append(Reply(['I ', 'am.']))
  again.click()
  expect(visit.find('.message .text').last).to_have_text('I am.')
  assert visit.texts() == ['The lamp is lit.', 'Are you there?', 'I am.']
  expect(notice).to_be_hidden()
  expect(visit.find('#draft')).to_have_value('')


def test_reasoning_is_off_until_it_is_asked_for_and_folded(fake, visit, expect):
  visit.start_conversation('Mira')
  expect(visit.find('#thinks')).to_be_hidden()
  visit.write('Hello')
  expect(visit.find('.message .text')).to_have_count(3)
  expect(visit.find('.message .reasoning').last).to_be_hidden()
  fake.thinks = True
  visit.page.reload()
  expect(visit.find('#thinks')).not_to_be_checked()
  visit.find('#thinks').check()
  fake.replies.append(Reply(['Yes.'], reasoning='<b>Hm</b>', is_held=True))
  visit.write('Why?')
  live = visit.find('.message.live')
  expect(live.locator('summary')).to_have_text('Reasoning')
  expect(live.locator('details p')).to_be_hidden()
  expect(live.locator('details p')).to_have_text('<b>Hm</b>')
  fake.release()
  expect(live).to_have_count(0)
  last = visit.find('.message').last
  expect(last.locator('.text')).to_have_text('Yes.')
  last.locator('summary').click()
  expect(last.locator('details p')).to_be_visible()
  visit.page.reload()
  last = visit.find('.message').last
  expect(last.locator('details p')).to_have_text('<b>Hm</b>')
  expect(last.locator('details p')).to_be_hidden()
  expect(visit.find('#thinks')).to_be_checked()
  assert 'chat_template_kwargs' not in fake.bodies[0]
  assert fake.bodies[1]['chat_template_kwargs'] == {'enable_thinking': True}


def test_what_was_typed_meanwhile_stands_behind_what_comes_back(
  fake, visit, expect
):
  visit.start_conversation('Mira')
  fake.refuse(CHAT, 429, 'full.')
  visit.page.route(f'**{CHAT}', lambda route: _late(visit, route))
  visit.write('First.')
  expect(visit.find('#draft')).to_have_value('First.\nSecond.')


def _late(visit, route):
  visit.find('#draft').fill('Second.')
  route.continue_()


@pytest.mark.parametrize(
  'end, words',
  [
    ({'error': 'the model gave no numbers.'}, 'the model gave no numbers.'),
    ({'is_broken': True}, 'The connection broke off.'),
  ],
)
def test_a_stream_that_breaks_shows_what_came_and_says_so(
  fake, visit, expect, end, words
):
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Once there was'], is_held=True, **end))
  visit.write('A story, please.')
  # A browser drops what it has not yet handed on when a connection breaks.
  expect(visit.find('.message.live .text')).to_have_text('Once there was')
  fake.release()
  expect(visit.find('#notice')).to_contain_text(words)
  lost = visit.find('.message.lost')
  expect(lost.locator('.text')).to_have_text('Once there was')
  expect(lost).to_contain_text('It is not stored.')
  fake.replies.append(Reply(['Once there was a ship.']))
  visit.press('Try again')
  expect(visit.find('.message .text').last).to_have_text(
    'Once there was a ship.'
  )
  assert fake.bodies[-1]['messages'] == []  # It answers what is stored.
  assert visit.texts().count('A story, please.') == 1


def test_a_stream_without_an_end_is_told_from_a_whole_one(fake, visit, expect):
  visit.start_conversation('Mira')
  chunk = 'data: {"choices":[{"delta":{"content":"Hm"}}]}\r\n\r\n'
  visit.page.route(
    f'**{CHAT}',
    lambda route: route.fulfill(body=chunk, content_type='text/event-stream'),
  )
  visit.write('Hello')
  words = 'The connection ended before the reply did.'
  expect(visit.find('#notice')).to_contain_text(words)
  expect(visit.find('.message.lost .text')).to_have_text('Hm')
  expect(visit.find('#draft')).to_have_value('Hello')


def test_the_filter_of_replies_is_named(fake, visit, expect):
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Half of '], finish='content_filter'))
  visit.write('Hello')
  remark = visit.find('.message').last.locator('.remark')
  expect(remark).to_have_text('The content filter ended this reply.')
  visit.page.reload()
  expect(remark).to_have_text('The content filter ended this reply.')


def test_the_gate_gives_back_what_it_refused(fake, visit, expect):
  visit.start_conversation('Mira')
  fake.replies.append(Reply([], refusal='The gate refused this message.'))
  visit.write('zorbifex')
  remark = visit.find('.message.lost .remark')
  expect(remark).to_have_text('The gate refused this message.')
  expect(visit.find('#draft')).to_have_value('zorbifex')
  visit.write('Good evening')
  expect(visit.find('.message.lost')).to_have_count(0)
  expect(visit.find('.message .text').nth(1)).to_have_text('Good evening')


def test_a_store_that_is_down_is_told_and_keeps_message_and_edit(
  fake, visit, expect
):
  visit.start_conversation('Mira')
  fake.refuse(CHAT, 503, 'the store is away.')
  visit.write('Remember this')
  notice = visit.find('#notice')
  expect(notice).to_contain_text('can neither answer nor store anything')
  expect(visit.find('#draft')).to_have_value('Remember this')
  visit.press('Edit this message')
  visit.find('.editor textarea').fill('The lamp is out.')
  fake.refuse('', 503, 'the store is away.')
  visit.press('Save')
  expect(notice).to_contain_text('the store is away.')
  expect(visit.find('.editor textarea')).to_have_value('The lamp is out.')
  visit.page.reload()
  expect(visit.find('.editor textarea')).to_have_value('The lamp is out.')
  visit.press('Save')
  expect(visit.find('.message .text')).to_have_text('The lamp is out.')
  expect(visit.find('#draft')).to_have_value('Remember this')


def test_without_a_connection_all_stays_and_goes_on_later(fake, visit, expect):
  visit.start_conversation('Mira')
  visit.context.set_offline(True)
  visit.write('Into the dark')
  notice = visit.find('#notice')
  expect(notice).to_contain_text('The server cannot be reached.')
  expect(visit.find('.message .text').last).to_have_text('Into the dark')
  visit.context.set_offline(False)
  visit.press('Try again')
  expect(visit.find('.message')).to_have_count(3)
  assert visit.texts()[1] == 'Into the dark'
  expect(notice).to_be_hidden()


def test_a_message_of_which_nothing_is_known_goes_with_the_next_one(
  fake, visit, expect
):
  visit.start_conversation('Mira')
  visit.context.set_offline(True)
  visit.write('Into the dark')
  expect(visit.find('#notice')).to_contain_text('cannot be reached')
  visit.press('Dismiss')
  visit.write('and out')
  expect(visit.find('#notice')).to_contain_text('cannot be reached')
  expect(visit.find('#draft')).to_have_value('and out')
  visit.context.set_offline(False)
  visit.find('#draft').press('Enter')
  expect(visit.find('.message')).to_have_count(3)
  assert visit.texts()[1] == 'Into the dark\nand out'


def test_an_edit_that_changes_nothing_makes_no_sibling(fake, visit, expect):
  visit.start_conversation('Mira')
  visit.find('.message').hover()
  visit.press('Edit this message')
  visit.press('Save')
  expect(visit.find('.editor')).to_have_count(0)
  (session,) = fake.sessions.values()
  assert len(session['messages']) == 1


def test_an_action_that_failed_is_tried_again(fake, visit, expect):
  for words in 'full.', 'still full.':
    fake.refuse('/v1/sessions', 429, words, {'Retry-After': '1'})
  visit.find('.character').click()
  visit.press('Start a conversation')
  again = visit.page.get_by_role('button', name='Try again', exact=True)
  again.click()  # In time.
  expect(visit.find('#notice')).to_contain_text('still full.')
  again.click()
  expect(visit.find('.message .text')).to_have_text('The lamp is lit.')
  expect(visit.find('#notice')).to_be_hidden()
  assert len(fake.sessions) == 1


def test_an_edit_is_answered_where_it_was_made(fake, visit, expect):
  visit.start_conversation('Mira')
  visit.write('Frist')
  expect(visit.find('.message')).to_have_count(3)
  expect(visit.find('#composer .stop')).to_be_hidden()
  visit.find('.message').nth(1).hover()
  visit.find('.message').nth(1).locator('.edit').click()
  visit.find('.editor textarea').fill('First')
  visit.page.route('**/messages', lambda route: _leave(visit, route))
  with visit.page.expect_response(f'**{CHAT}'):
    visit.press('Save')
    expect(visit.find('#welcome')).to_be_visible()
  visit.find('#conversations').get_by_text('Mira').click()
  expect(visit.find('.message .text').nth(1)).to_have_text('First')
  expect(visit.find('.message')).to_have_count(3)
  (session,) = fake.sessions
  assert [body['session'] for body in fake.bodies] == [session] * 2


def _leave(visit, route):
  visit.page.get_by_role('link', name='New').click()
  route.continue_()


def test_a_token_is_asked_for_once_and_kept_for_the_tab_alone(
  chromium, fake, expect
):
  fake.token = 'right'
  with browser_lib.visit(chromium, fake.address, (401,)) as visit:
    dialog = visit.find('#token')
    visit.find('#token-text').fill('wrong')
    visit.press('Continue')
    expect(dialog).to_contain_text('The server does not know that token.')
    visit.press('Not now')
    expect(visit.find('#notice')).to_contain_text('Without a token')
    visit.press('Try again')
    visit.find('#token-text').fill(' right\n')
    visit.press('Continue')
    visit.start_conversation('Mira')
    visit.find('#draft').fill('Nothing is lost')
    fake.token = 'newer'
    visit.find('#draft').press('Enter')
    expect(dialog).to_be_visible()
    visit.press('Not now')
    expect(visit.find('#notice')).to_contain_text('Without a token')
    visit.press('Try again')
    visit.find('#token-text').fill('newer')
    visit.press('Continue')
    expect(visit.find('.message')).to_have_count(3)
    assert visit.texts()[1] == 'Nothing is lost'
    kept = visit.page.evaluate(
      '() => [sessionStorage, localStorage].map((x) => JSON.stringify(x))'
    )
    assert 'newer' in kept[0] and 'newer' not in kept[1]


def test_a_stopped_reply_is_kept_as_far_as_it_came(fake, visit, expect):
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Well, ', 'never said'], is_held=True))
  visit.write('Hello')
  expect(visit.find('.live .text')).to_have_text('Well,')
  visit.press('Stop the reply')
  last = visit.find('.message').last
  expect(last).to_contain_text('This reply was stopped.')
  assert visit.texts()[1:] == ['Hello', 'Well, ']
  expect(visit.find('.message.lost')).to_have_count(0)


def test_a_reload_in_the_middle_shows_what_is_stored(fake, visit, expect):
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Well, ', 'never said'], is_held=True))
  visit.write('Hello')
  expect(visit.find('.live .text')).to_have_text('Well,')
  visit.find('#draft').fill('A thought for later')
  visit.page.reload()
  expect(visit.find('.message .text').nth(1)).to_have_text('Hello')
  expect(visit.find('#draft')).to_have_value('A thought for later')
  (session,) = fake.sessions.values()
  assert trivial.until(lambda: len(session['messages']) == 3)
  visit.page.reload()
  expect(visit.find('.message').last).to_contain_text('was stopped')
  assert visit.texts() == ['The lamp is lit.', 'Hello', 'Well, ']


def test_a_message_without_a_reply_can_be_answered(fake, visit, expect):
  visit.start_conversation('Mira')
  session = next(iter(fake.sessions.values()))
  fake.add_message(session, 0, 'user', 'Anybody?')
  visit.page.reload()
  fake.replies.append(Reply(['Yes.']))
  visit.press('Ask for a reply')
  expect(visit.find('.message .text').last).to_have_text('Yes.')
  assert fake.bodies == [
    {
      'model': 'tiny',
      'session': session['id'],
      'messages': [],
      'temperature': 0.7,
      'stream': True,
      'stream_options': {'include_usage': True},
    }
  ]


def test_a_reply_goes_on_while_another_conversation_is_open(
  fake, visit, expect
):
  fake.add_character('Tolo', greeting='This one is Gerald.')
  visit.page.reload()
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Patience ', 'pays.'], is_held=True))
  visit.write('Hello')
  expect(visit.find('.live .text')).to_have_text('Patience')
  visit.page.get_by_role('link', name='New').click()
  visit.start_conversation('Tolo')
  visit.write('Who?')
  expect(visit.find('.message')).to_have_count(3)
  conversations = visit.find('#conversations')
  conversations.get_by_text('Mira').click()
  expect(visit.find('.live .text')).to_have_text('Patience')
  assert visit.texts() == ['The lamp is lit.', 'Hello', 'Patience ']
  conversations.get_by_text('Tolo').click()
  expect(visit.find('.live')).to_have_count(0)
  fake.release()
  conversations.get_by_text('Mira').click()
  expect(visit.find('.message .text').last).to_have_text('Patience pays.')
  assert visit.texts() == ['The lamp is lit.', 'Hello', 'Patience pays.']


def test_the_end_stays_in_view_for_who_reads_there(fake, visit, expect):
  visit.start_conversation('Mira')
  (session,) = fake.sessions.values()
  for place in range(30):
    role = 'user' if place % 2 else 'assistant'
    fake.add_message(session, place, role, f'Line {place}')
  visit.page.reload()
  last = visit.find('.message').last
  expect(last).to_be_in_viewport()
  fake.replies.append(Reply(['Many\n' * 30, 'lines'], error='gone.'))
  visit.write('More')
  expect(visit.find('#notice')).to_be_visible()
  expect(last.locator('.remark')).to_be_in_viewport()
  visit.find('.message').nth(3).scroll_into_view_if_needed()
  visit.press('Try again')
  expect(visit.find('.message')).to_have_count(33)
  expect(visit.find('#composer .stop')).to_be_hidden()
  expect(visit.find('.message').nth(3)).to_be_in_viewport()
  expect(last).not_to_be_in_viewport()


def test_a_conversation_that_is_gone_leads_home_with_words(fake, visit, expect):
  visit.start_conversation('Mira')
  fake.sessions.clear()
  visit.page.evaluate('() => history.back()')
  expect(visit.find('#sheet')).to_be_visible()
  visit.page.evaluate('() => history.forward()')
  expect(visit.find('#notice')).to_contain_text('This is not there any more.')
  expect(visit.find('#welcome')).to_be_visible()
  expect(visit.find('#conversations .session')).to_have_count(0)


def test_long_listings_are_read_to_their_end(fake, visit, expect):
  for name in 'Ada', 'Bo', 'Cy', 'Di':
    fake.open(fake.add_character(name))
  fake.page = 2
  visit.page.reload()
  expect(visit.find('.character')).to_have_count(5)
  expect(visit.find('#conversations .session')).to_have_count(4)


def test_what_is_moderated_is_not_called_unmoderated(fake, visit, expect):
  pill = visit.find('.unmoderated')
  expect(pill).to_be_visible()
  fake.moderated = True
  visit.page.reload()
  expect(visit.find('#banner')).to_contain_text('2,134,528 parameters')
  expect(visit.find('#banner')).to_contain_text('a model of 2 million')
  expect(pill).to_be_hidden()


def test_a_card_that_is_refused_is_told(fake, visit, expect):
  visit.drop({'spec': 'chara_card_v2', 'data': {'name': ''}})
  expect(visit.find('#notice')).to_contain_text('name: must not be empty.')
  visit.drop('x' * (8 * 2**20 + 1), 'large.json')
  expect(visit.find('#notice')).to_contain_text('large.json has more than 8')


def test_who_may_agree_is_asked_and_a_refusal_leaves_the_box(
  fake, visit, expect
):
  box = visit.find('#agrees')
  expect(visit.find('#conversations')).to_be_visible()
  expect(box).to_be_hidden()
  fake.may_agree = True
  visit.page.reload()
  expect(box).not_to_be_checked()
  box.check()
  visit.page.reload()
  expect(box).to_be_checked()
  assert fake.agrees
  fake.refuse('/v1/feedback', 503, 'the store is away.')
  box.click()
  expect(visit.find('#notice')).to_contain_text('the store is away.')
  expect(box).to_be_checked()
  visit.press('Try again')
  expect(visit.find('#notice')).to_be_hidden()
