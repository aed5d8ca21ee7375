"""The page where the server refuses, breaks off, or goes away.

Nothing that was typed is ever lost, and every failure is told in words.
"""

import pytest

from tests.serving import browser as browser_lib
from tests.serving import fake_api

pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=2)]

CHAT = '/v1/chat/completions'
NOW = 1_800_000_000  # Seconds.
GREETING = 'The lamp is lit.'
Reply = fake_api.Reply


@pytest.fixture(scope='module')
def chromium():
  with browser_lib.chromium() as browser:
    yield browser


@pytest.fixture
def fake():
  with fake_api.serving() as fake:
    fake.add_character('Mira', greeting=GREETING)
    yield fake


@pytest.fixture
def visit(chromium, fake):
  expected = (0, 400, 401, 404, 429, 503)
  with browser_lib.visit(chromium, fake.address, expected) as visit:
    yield visit


@pytest.fixture
def talk(visit):
  """A visit that has begun a conversation."""
  visit.start_conversation('Mira')
  return visit


def session_of(fake):
  (session,) = fake.sessions.values()
  return session


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(fake, talk):
  talk.page.clock.set_fixed_time(NOW)
  fake.refuse(CHAT, 429, 'eight wait already.', {'Retry-After': '2'})
  talk.write('Are you there?')
  talk.tells('The server is busy. eight wait already.')
  talk.drafts('Are you there?')
  again = talk.page.get_by_role('button', name='Try again')
  for seconds in 2, 1:
    talk.expect(again).to_have_text(f'Try again in {seconds} s')
    talk.expect(again).to_be_disabled()
    talk.page.clock.set_fixed_time(NOW + 3 - seconds)
  talk.expect(again).to_be_enabled()
  fake.replies.append(Reply(['I ', 'am.']))
  again.click()
  talk.shows(GREETING, 'Are you there?', 'I am.')
  talk.counts(3)
  talk.tells('')
  talk.drafts('')


def test_reasoning_is_off_until_it_is_asked_for_and_folded(fake, talk):
  talk.expect('#thinks').to_be_hidden()
  talk.write('Hello')
  talk.counts(3, '.message .text')
  talk.expect(talk.find('.message .reasoning').last).to_be_hidden()
  fake.thinks = True
  talk.page.reload()
  talk.expect('#thinks').not_to_be_checked()
  talk.find('#thinks').check()
  fake.replies.append(Reply(['Yes.'], reasoning='<b>Hm</b>', is_held=True))
  talk.write('Why?')
  talk.expect('.live summary').to_have_text('Reasoning')
  talk.expect('.live details p').to_be_hidden()
  talk.expect('.live details p').to_have_text('<b>Hm</b>')
  fake.release()
  talk.counts(0, '.message.live')
  talk.shows('Yes.')
  talk.last.locator('summary').click()
  thought = talk.find('.message').last.locator('details p')
  talk.expect(thought).to_be_visible()
  talk.page.reload()
  talk.expect(thought).to_have_text('<b>Hm</b>')
  talk.expect(thought).to_be_hidden()
  talk.expect('#thinks').to_be_checked()
  assert 'chat_template_kwargs' not in fake.bodies[0]
  assert fake.bodies[1]['chat_template_kwargs'] == {'enable_thinking': True}


def test_how_replies_are_drawn_is_kept_by_the_browser(fake, talk):
  def field(name):
    return talk.page.get_by_label(name)

  talk.expect('#sampling input[name=seed]').to_be_hidden()
  talk.write('Hello')
  talk.counts(3, '.message .text')
  talk.page.get_by_text('How replies are drawn').click()
  field('Preset').select_option('Lively')
  for name, value in ('Temperature', '0.9'), ('Seed', '7'), ('Top-p', '3'):
    field(name).fill(value)
    field(name).press('Tab')
  talk.expect(field('Preset')).to_have_value('yours')
  talk.page.reload()
  talk.page.get_by_text('How replies are drawn').click()
  talk.expect(field('Temperature')).to_have_value('0.9')
  talk.expect(field('Top-p')).to_have_value('')  # It was out of range.
  talk.write('Again')
  talk.counts(5, '.message .text')
  field('Preset').select_option("The model's own")
  field('Seed').press('Enter')  # It sends nothing.
  talk.write('Once more')
  talk.counts(7, '.message .text')
  for count in '2/2', '3/3':
    talk.last.get_by_role('button', name='A new version').click()
    talk.expect(talk.find('.count').last).to_have_text(count)
  first, second, third, *swipes = fake.bodies
  assert [one['seed'] for one in swipes] == [8, 9]  # Other candidates.
  given = {'temperature': 0.9, 'min_p': 0.05, 'dry_multiplier': 0.8, 'seed': 7}
  assert {name: second.get(name) for name in given} == given
  third.pop('seed')
  for plain in first, third:
    assert plain.pop('temperature') == 0.7 and not {*given} & {*plain}


def test_a_version_asked_for_again_has_its_seed_elsewhere(fake, talk):
  keep = "localStorage.setItem('kaiju.sampling', '{\"seed\": 7}')"
  talk.page.evaluate(keep)
  talk.write('Hello')
  talk.counts(3)
  fake.refuse(CHAT, 429, 'full.')
  talk.last.get_by_role('button', name='A new version').click()
  talk.tells('full.')

  def leave(route):
    talk.page.get_by_role('link', name='New').click()
    talk.expect('#welcome').to_be_visible()
    route.continue_()

  talk.page.route('**/sessions/*', leave, times=1)
  with talk.page.expect_response(f'**{CHAT}'):
    talk.press('Try again')
  assert [one['seed'] for one in fake.bodies] == [7, 8]


def test_what_was_typed_meanwhile_stands_behind_what_comes_back(fake, talk):
  def late(route):
    talk.find('#draft').fill('Second.')
    route.continue_()

  fake.refuse(CHAT, 429, 'full.')
  talk.page.route(f'**{CHAT}', late)
  talk.write('First.')
  talk.drafts('First.\nSecond.')


@pytest.mark.parametrize(
  'end, words',
  [
    ({'error': 'the model gave no numbers.'}, 'the model gave no numbers.'),
    ({'is_broken': True}, 'The connection broke off.'),
  ],
)
def test_a_stream_that_breaks_shows_what_came_and_says_so(
  fake, talk, end, words
):
  fake.replies.append(Reply(['Once there was'], is_held=True, **end))
  talk.write('A story, please.')
  # A browser drops what it has not yet handed on when a connection breaks.
  talk.expect('.message.live .text').to_have_text('Once there was')
  fake.release()
  talk.tells(words)
  talk.expect('.message.lost .text').to_have_text('Once there was')
  talk.expect('.message.lost').to_contain_text('It is not stored.')
  fake.replies.append(Reply(['Once there was a ship.']))
  talk.press('Try again')
  talk.shows('A story, please.', 'Once there was a ship.')
  talk.counts(3)
  assert fake.bodies[-1]['messages'] == []  # It answers what is stored.


def test_a_stream_without_an_end_is_told_from_a_whole_one(talk):
  chunk = 'data: {"choices":[{"delta":{"content":"Hm"}}]}\r\n\r\n'
  talk.page.route(
    f'**{CHAT}',
    lambda route: route.fulfill(body=chunk, content_type='text/event-stream'),
  )
  talk.write('Hello')
  talk.tells('The connection ended before the reply did.')
  talk.expect('.message.lost .text').to_have_text('Hm')
  talk.drafts('Hello')


def test_what_was_refused_is_named_and_given_back(fake, talk):
  fake.replies.append(Reply(['Half of '], finish='content_filter'))
  talk.write('Hello')
  remark = talk.last.locator('.remark')
  for _ in range(2):
    talk.expect(remark).to_have_text('The content filter ended this reply.')
    talk.page.reload()
  # Of the gate.
  fake.replies.append(Reply([], refusal='The gate refused this message.'))
  talk.write('zorbifex')
  lost = '.message.lost .remark'
  talk.expect(lost).to_have_text('The gate refused this message.')
  talk.drafts('zorbifex')
  talk.write('Good evening')
  talk.counts(0, '.message.lost')
  talk.counts(5)
  assert talk.texts()[-2] == 'Good evening'


def test_a_store_that_is_down_is_told_and_keeps_message_and_edit(fake, talk):
  fake.refuse(CHAT, 503, 'the store is away.')
  talk.write('Remember this')
  talk.tells('can neither answer nor store anything')
  talk.drafts('Remember this')
  talk.edit(0, 'The lamp is out.')
  fake.refuse('', 503, 'the store is away.')
  talk.press('Save')
  talk.tells('the store is away.')
  for _ in range(2):
    talk.expect('.editor textarea').to_have_value('The lamp is out.')
    talk.page.reload()
  talk.press('Save')
  talk.shows('The lamp is out.')
  talk.drafts('Remember this')


def test_without_a_connection_all_stays_and_goes_on_later(talk):
  talk.context.set_offline(True)
  talk.write('Into the dark')
  talk.tells('The server cannot be reached.')
  talk.shows('Into the dark')
  talk.context.set_offline(False)
  talk.press('Try again')
  talk.counts(3)
  assert talk.texts()[1] == 'Into the dark'
  talk.tells('')


def test_a_message_of_which_nothing_is_known_goes_with_the_next_one(talk):
  talk.context.set_offline(True)
  talk.write('Into the dark')
  talk.tells('cannot be reached')
  talk.press('Dismiss')
  talk.write('and out')
  talk.tells('cannot be reached')
  talk.drafts('and out')
  talk.context.set_offline(False)
  talk.find('#draft').press('Enter')
  talk.counts(3)
  assert talk.texts()[1] == 'Into the dark\nand out'


def test_an_action_that_failed_is_tried_again(fake, visit):
  for words in 'full.', 'still full.':
    fake.refuse('/v1/sessions', 429, words, {'Retry-After': '1'})
  visit.find('.character').click()
  visit.press('Start a conversation')
  again = visit.page.get_by_role('button', name='Try again', exact=True)
  again.click()  # In time.
  visit.tells('still full.')
  again.click()
  visit.shows(GREETING)
  visit.tells('')
  assert len(fake.sessions) == 1


def test_an_edit_is_answered_where_it_was_made(fake, talk):
  # One that changes nothing makes no sibling.
  talk.edit(0)
  talk.press('Save')
  talk.counts(0, '.editor')
  assert len(session_of(fake)['messages']) == 1
  talk.write('Frist')
  talk.counts(3)
  talk.expect('#composer .stop').to_be_hidden()
  talk.edit(1, 'First')

  def leave(route):
    talk.page.get_by_role('link', name='New').click()
    route.continue_()

  talk.page.route('**/messages', leave)
  with talk.page.expect_response(f'**{CHAT}'):
    talk.press('Save')
    talk.expect('#welcome').to_be_visible()
  talk.find('#conversations').get_by_text('Mira').click()
  talk.expect(talk.find('.message .text').nth(1)).to_have_text('First')
  talk.counts(3)
  assert [x['session'] for x in fake.bodies] == [session_of(fake)['id']] * 2


def test_a_token_is_asked_for_once_and_kept_for_the_tab_alone(chromium, fake):
  fake.token = 'right'
  with browser_lib.visit(chromium, fake.address, (401,)) as visit:

    def give(token):
      visit.find('#token-text').fill(token)
      visit.press('Continue')

    def decline():
      visit.press('Not now')
      visit.tells('Without a token')
      visit.press('Try again')

    give('wrong')
    words = 'The server does not know that token.'
    visit.expect('#token').to_contain_text(words)
    decline()
    give(' right\n')
    visit.start_conversation('Mira')
    visit.find('#draft').fill('Nothing is lost')
    fake.token = 'newer'
    visit.find('#draft').press('Enter')
    visit.expect('#token').to_be_visible()
    decline()
    give('newer')
    visit.counts(3)
    assert visit.texts()[1] == 'Nothing is lost'
    kept = visit.page.evaluate(
      '() => [sessionStorage, localStorage].map((x) => JSON.stringify(x))'
    )
    assert 'newer' in kept[0] and 'newer' not in kept[1]


def test_a_message_without_a_reply_can_be_answered(fake, talk):
  session = session_of(fake)
  fake.add_message(session, 0, 'user', 'Anybody?')
  talk.page.reload()
  fake.replies.append(Reply(['Yes.']))
  talk.press('Ask for a reply')
  talk.shows('Yes.')
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


def test_a_reply_goes_on_while_another_conversation_is_open(fake, visit):
  fake.add_character('Tolo', greeting='This one is Gerald.')
  visit.page.reload()
  visit.start_conversation('Mira')
  fake.replies.append(Reply(['Patience ', 'pays.'], is_held=True))
  visit.write('Hello')
  visit.expect('.live .text').to_have_text('Patience')
  visit.page.get_by_role('link', name='New').click()
  visit.start_conversation('Tolo')
  visit.write('Who?')
  visit.counts(3)
  conversations = visit.find('#conversations')
  conversations.get_by_text('Mira').click()
  visit.expect('.live .text').to_have_text('Patience')
  assert visit.texts() == [GREETING, 'Hello', 'Patience ']
  conversations.get_by_text('Tolo').click()
  visit.counts(0, '.live')
  fake.release()
  conversations.get_by_text('Mira').click()
  visit.shows(GREETING, 'Hello', 'Patience pays.')


def test_the_end_stays_in_view_for_who_reads_there(fake, talk):
  session = session_of(fake)
  for place in range(30):
    role = 'user' if place % 2 else 'assistant'
    fake.add_message(session, place, role, f'Line {place}')
  talk.page.reload()
  talk.expect(talk.last).to_be_in_viewport()
  fake.replies.append(Reply(['Many\n' * 30, 'lines'], error='gone.'))
  talk.write('More')
  talk.expect('#notice').to_be_visible()
  talk.expect(talk.last.locator('.remark')).to_be_in_viewport()
  early = talk.find('.message').nth(3)
  early.scroll_into_view_if_needed()
  talk.press('Try again')
  talk.counts(33)
  talk.expect('#composer .stop').to_be_hidden()
  talk.expect(early).to_be_in_viewport()
  talk.expect(talk.last).not_to_be_in_viewport()


def test_a_conversation_that_is_gone_leads_home_with_words(fake, talk):
  fake.sessions.clear()
  talk.page.evaluate('() => history.back()')
  talk.expect('#sheet').to_be_visible()
  talk.page.evaluate('() => history.forward()')
  talk.tells('This is not there any more.')
  talk.expect('#welcome').to_be_visible()
  talk.counts(0, '#conversations .session')


def test_long_listings_are_read_to_their_end(fake, visit):
  for name in 'Ada', 'Bo', 'Cy', 'Di':
    fake.open(fake.add_character(name))
  fake.page = 2
  visit.page.reload()
  visit.counts(5, '.character')
  visit.counts(4, '#conversations .session')


def test_what_is_moderated_is_not_called_unmoderated(fake, visit):
  visit.expect('.unmoderated').to_be_visible()
  fake.moderated = True
  visit.page.reload()
  visit.expect('#banner').to_contain_text('2,134,528 parameters')
  visit.expect('#banner').to_contain_text('apache-2.0')
  visit.expect('#banner').to_contain_text('a model of 2 million')
  visit.expect('.unmoderated').to_be_hidden()


def test_a_card_that_is_refused_is_told(visit):
  visit.drop({'spec': 'chara_card_v2', 'data': {'name': ''}})
  visit.tells('name: must not be empty.')
  visit.drop('x' * (8 * 2**20 + 1), 'large.json')
  visit.tells('large.json has more than 8')


def test_who_may_agree_is_asked_and_a_refusal_leaves_the_box(fake, visit):
  box = visit.expect('#agrees')
  visit.expect('#conversations').to_be_visible()
  box.to_be_hidden()
  fake.may_agree = True
  visit.page.reload()
  box.not_to_be_checked()
  visit.find('#agrees').check()
  visit.page.reload()
  box.to_be_checked()
  assert fake.agrees
  fake.refuse('/v1/feedback', 503, 'the store is away.')
  visit.find('#agrees').click()
  visit.tells('the store is away.')
  box.to_be_checked()
  visit.press('Try again')
  visit.tells('')
