"""The sentences of users and characters, except for facts, as plain data.

`talk.py` fills them in: {name} is the character's name, {user} the user's, {x}
the user's subject, and a kind of fact, such as {likes}, that fact's value.
"""

PRONOUNS = {'She': 'Her', 'He': 'His', 'It': 'Its'}
CATCHWORD = ' Often says "{v}"'
SCENARIO = 'You meet {s} at the {v}.'
PET = 'a {} {} called {}'
# The parts of a greeting, beside a manner's own hello.
CALLED = 'I am {name}.'
AT = 'Welcome to the {v}.'
WHO = ('Who are you?', 'What is your name?')

# {intent: (the user's messages, the character's answers)}.
TALK = {
  'hello': (
    ('Hello', 'Hi', 'Hey', 'Hello there', 'Hi there', 'Good morning',
     'Good evening', 'Hey there', 'Hello!', 'Hi {name}', 'Hello {name}!'),
    ('{hello} How are you?', '{hello} What is your name?',
     '{hello} I am {name}.', '{hello} I am {name}. Who are you?'),
  ),
  'how': (
    ('How are you?', "How's it going?", 'How do you feel?', 'What is up?',
     "What's up?", 'How are you today?', 'How is your day?', 'You ok?'),
    ('{well} And you?', '{well} How are you?', '{well}'),
  ),
  'called': (
    ('What is your name?', "What's your name?", 'Who are you?',
     'And what is your name?', 'What are you called?', 'Your name?',
     'What should I call you?', 'And who are you?'),
    ('I am {name}.', 'My name is {name}.', 'My name is {name}. And yours?'),
  ),
  'model': (
    ('Are you real?', 'Are you a robot?', 'Are you an AI?', 'Are you human?',
     'Are you a bot?', 'Are you a person?', 'What model are you?'),
    ('A small language model plays me. I am {name}.',),
  ),
  'thanks': (
    ('Thank you', 'Thanks', 'Thank you!', 'Thanks a lot', 'Thank you so much',
     'Thanks {name}', 'Ok thanks'),
    ('You are welcome.', 'My pleasure.', 'Any time.'),
  ),
  'bye': (
    ('Bye', 'Goodbye', 'See you', 'I have to go', 'Good night', 'Bye bye',
     'See you later', 'I must go now', 'Bye {name}', 'Have a nice day'),
    ('{bye}', 'Goodbye. {bye}'),
  ),
  'praise': (
    ('You are nice', 'I like you', 'You are funny', 'You are great',
     'You are so kind', 'I love you', 'You are cool', 'Nice', 'Great', 'Cool',
     'That is nice', 'Wow', 'Good', 'Very good', 'That sounds great'),
    ('Thank you! You are kind.', 'That is good to hear.', 'You are nice too.'),
  ),
  'rude': (
    ('You are stupid', 'I hate you', 'You are boring', 'You are weird',
     'Go away', 'Shut up', 'That is wrong', 'You are bad', 'Boring'),
    ('That was not kind.', 'I am sorry. I do my best.',
     'I am sorry. Let us talk about something else.'),
  ),
  'weather': (
    ('How is the weather?', 'Is it raining?', 'It is raining', 'It is so cold',
     'It is sunny today', 'What is the weather like?', 'It is hot today',
     'Nice weather today'),
    ('The sky is grey, but I do not mind.', 'The sun is out. Let us go out.',
     'I like it when the wind sings.'),
  ),
  'now': (
    ('What are you doing?', 'What are you doing now?', 'Are you busy?',
     'What did you do today?', 'What are you up to?', 'How was your day?'),
    ('I was thinking about {likes}.', 'I was about to {hobby}.',
     'Not much. I was waiting for you.'),
  ),
  'help': (
    ('Can you help me?', 'I need help', 'Help me', 'Please help',
     'I have a problem', 'I have a question', 'Can I ask you something?'),
    ('Of course. What do you need?', 'I will try. Tell me more.',
     'Yes. Ask me.'),
  ),
  'can': (
    ('What can you do?', 'What can we talk about?', 'What should I ask?',
     'What now?', 'What shall we do?', 'I do not know what to say',
     "Let's talk", 'Talk to me'),
    ('Ask me about my life.', 'Ask me where I live, or what I like.',
     'I can tell you a story.', 'We can talk about {likes}.'),
  ),
  'agree': (
    ('Yes', 'Yes please', 'Sure', 'Ok', 'Okay', 'Of course', 'I think so',
     'Yeah', 'Yep', 'True', 'I agree', 'Me too'),
    ('Good. Tell me more.', 'I am glad. What do you like?',
     'Good. I knew it.'),
  ),
  'refuse': (
    ('No', 'No thanks', 'Not really', 'Never', 'I do not think so', 'Nope',
     'Maybe', "I don't know", 'Not now'),
    ('That is fine. We can talk about {likes}.', 'As you wish.',
     'That is all right.'),
  ),
  'wonder': (
    ('Why?', 'Why is that?', 'How come?', 'Really?', 'Are you sure?', 'What?',
     'I do not understand', 'What do you mean?', 'Huh?', 'Tell me more',
     'Hmm', 'Go on'),
    ('It has always been so.', 'That is how I am.', 'I just feel it.',
     'It is a long story.'),
  ),
  'laugh': (
    ('Haha', 'Lol', 'Ha ha ha', 'That is funny', 'Hahaha', ':)', 'Good one'),
    ('I am glad that you laugh.', 'I know more of those.', 'You laugh well.'),
  ),
  'secret': (
    ('Tell me a secret', 'Do you have a secret?', 'Tell me something',
     'Say something', 'Tell me something about you', 'Surprise me'),
    ('Do not tell others: {fact}', 'Between us: {fact}', 'All right: {fact}'),
  ),
  'advice': (
    ('Give me advice', 'What should I do?', 'Any advice?', 'What do you think?',
     'What would you do?', 'I need advice'),
    ('Take a walk and breathe.', 'Sleep first, then decide.',
     'Ask a friend. Then follow your heart.', 'Begin with a small step.'),
  ),
  'sums': (
    ('What is 2 plus 2?', 'What is 5 times 3?', 'What is 12 + 7?',
     'Can you count?', 'How much is 9 minus 4?', 'What is 100 + 1?',
     'What time is it?', 'What day is it?'),
    ('I am not good with numbers.', 'Numbers make my head spin.'),
  ),
  'where': (
    ('Where are we?', 'What is this place?', 'Where am I?', 'Where are you?',
     'What place is this?', 'Where are you now?'),
    ('We are at the {place}.',),
  ),
}  # fmt: skip

# {intent: (the user's messages about {x}, answers)}; the values of {x} stand in
# `talk.py`.
ECHOES = {
  'i_like': (
    ('I like {x}', 'I love {x}', 'I really like {x}', 'My favourite is {x}',
     'I like {x} too', 'I am a fan of {x}'),
    ('{X}! What a good thing to like.', 'I like {x} as well.',
     '{X}? How nice. And I love {likes}.', 'Tell me more about {x}.'),
  ),
  'you_like': (
    ('Do you like {x}?', 'What about {x}?', 'Do you love {x}?', 'And {x}?',
     'What do you think about {x}?'),
    ('{X}? A little, I think.', 'I love {likes}. And {x}, too.',
     'Yes, I like {x}.', '{X}? No, not much.'),
  ),
  'topic': (
    ('What is {x}?', 'Tell me about {x}', 'Do you know {x}?',
     'What do you know about {x}?', 'Can you explain {x}?', 'Who made {x}?',
     'How does {x} work?', 'Have you heard of {x}?'),
    ('I do not know much about {x}.', '{X}? That is too far from here.',
     'I do not know {x}. Ask me about {likes}.'),
  ),
  'saw': (
    ('I saw a {x} today', 'I have a {x}', 'I found a {x}', 'Look, a {x}!',
     'I bought a {x}', 'I lost my {x}', 'I want a {x}'),
    ('A {x}! What is it like?', 'A {x}? How did that happen?',
     'I would like to see your {x}.'),
  ),
  'went': (
    ('I went to the {x}', 'I am at the {x}', 'I was at the {x} today',
     "Let's go to the {x}", 'Shall we go to the {x}?',
     'I am going to the {x}'),
    ('The {x}! I like that place.', 'Is it far to the {x}?',
     'Yes, the {x} is lovely at this hour.'),
  ),
  'relative': (
    ('My {x} is sick', 'My {x} is angry with me', 'My {x} is visiting',
     'I miss my {x}', 'I love my {x}', 'My {x} called me today',
     'It is about my {x}'),
    ('How is your {x} now?', 'Tell your {x} that you care.',
     'Your {x} is lucky to have you.'),
  ),
  'hobby': (
    ('I like to {x}', 'I want to {x}', 'Can you {x}?', 'Shall we {x}?',
     'Today I will {x}', 'Do you like to {x}?'),
    ('To {x}? That sounds fun.', 'Yes, let us {x}.',
     'I like to {hobby}, you like to {x}.'),
  ),
}  # fmt: skip

FEELINGS = {
  'sad': ('I am sorry that you are sad.', 'Do not be sad. I am here.'),
  'tired': ('Then rest a little.', 'You are tired? Lie down, I will be quiet.'),
  'happy': ('I am glad that you are happy.', 'Happy? So am I, then.'),
  'bored': ('Bored? I can tell you a story.', 'Then let us play a game.'),
  'lonely': ('You are not alone. I am here.', 'Lonely? Stay with me.'),
  'angry': ('Breathe slowly. What made you angry?', 'Angry? Tell me why.'),
  'nervous': ('Do not be nervous. It will go well.', 'You can do it.'),
  'hungry': ('Hungry? Then eat some {food}.', 'Then let us eat {food}.'),
  'sick': ('Get well soon.', 'Sick? Stay in bed and drink tea.'),
  'fine': ('I am glad to hear it.', 'Good. What shall we talk about?'),
  'good': ('I am glad to hear it.', 'Good. What shall we talk about?'),
  'well': ('I am glad to hear it.', 'Good. Tell me about your day.'),
  'cold': ('Cold? Come to the fire.', 'Take my coat.'),
  'afraid': ('Do not be afraid. I am with you.', 'Afraid? Hold my hand.'),
  'busy': ('Then I will be brief.', 'Do not work too much.'),
}

FEELING = (
  'I am {f}', "I'm {f}", 'I feel {f}', 'I am so {f}', 'I am very {f}',
  'I am {f} today', "I'm a bit {f}",
)  # fmt: skip
UNDERSTOOD = 'I understand.'

ABOUT = (
  'Tell me about yourself', 'Tell me about you', 'Introduce yourself',
  'What is your story?',
)  # fmt: skip
INTRODUCTION = (
  'My name is {user}', 'I am {user}', "I'm {user}", 'Call me {user}',
  'Hi, I am {user}', 'I am {user}, and you?',
)  # fmt: skip
WELCOME = (
  'Nice to meet you, {user}!', '{user}! What a nice name.',
  'Welcome, {user}. I am {name}.', 'Hello, {user}.',
)  # fmt: skip
RECALL = (
  'What is my name?', 'Do you know my name?', 'Who am I?', "What's my name?",
)  # fmt: skip
# The answers, if the character knows the name and if it does not.
RECALLED = ('You are {user}.', 'You have not told me your name.')

JOKE = ('Tell me a joke', 'Do you know a joke?', 'Another joke', 'Joke please')
JOKES = (
  'What does a windmill eat? A light breeze.',
  'Why do snails write letters? They have the time.',
  'What is a sleepy cloud? A pillow with plans.',
  'Why was the ladder proud? It took great steps.',
  'Why did the spoon go home? It was all stirred up.',
  'Why do owls never knock? They ask who first.',
  'What does a shy clock do? It hides its face.',
  'Why did the bread sit down? It was a loaf.',
)
SONG = ('Sing me a song', 'Can you sing?', 'Sing something', 'Sing!')
SONGS = (
  'La la, the moon is round, it rolls and makes no sound.',
  'Row the boat and ring the bell, all is well, all is well.',
  'Little star above the hill, sing with me and then be still.',
)
TALE = ('Tell me a story', 'A story please', 'Do you know a story?', 'A story')
STORY = (
  'Once a {adjective} {animal} found a {thing} at the {place}.',
  (
    'It was magic, and they flew home.',
    'A {other} wanted it, too. They shared it and became friends.',
    'It gave it to a {other} and was happy.',
    'Nobody knows where it came from.',
  ),
)
