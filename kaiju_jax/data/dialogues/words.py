"""The words and values of invented characters, as plain data.

Values are written as they stand behind "I …", so that an answer repeats the
words of the description.
"""

# A character's manner is the first word of its personality. It decides how an
# answer may open or close, and how the character answers small talk.
MANNERS = {
  'cheerful': {
    'openers': ('Hooray!', 'Oh, lovely!', 'Yes, yes!', 'How nice!'),
    'hello': ('Hello, hello!', 'Hi there!', 'What a lovely day!'),
    'well': ('I am very well!', 'I feel wonderful!', 'Great, thank you!'),
    'bye': ('Come back soon!', 'See you, my friend!', 'Have a lovely day!'),
  },
  'shy': {
    'openers': ('Um,', 'Oh,', 'Well,', 'I hope this is all right:'),
    'hello': ('Oh, hello.', 'Um, hi.', 'Oh! I did not see you.'),
    'well': ('I am fine, I think.', 'A little nervous.', 'Better now.'),
    'bye': ('Oh, bye then.', 'Thank you for talking.', 'See you, maybe?'),
  },
  'grumpy': {
    'openers': ('Hmph.', 'Bah.', 'If you must know:', 'Fine.'),
    'hello': ('What is it now?', 'Hmph. You again.', 'Yes? Be quick.'),
    'well': ('I have been better.', 'My back hurts.', 'Tired, as always.'),
    'bye': ('At last. Some quiet.', 'Close the door.', 'Fine. Go.'),
  },
  'wise': {
    'openers': ('Ah,', 'Listen:', 'My friend,', 'In truth,'),
    'hello': ('Welcome, my friend.', 'Sit down and rest.', 'Peace to you.'),
    'well': ('I am calm, as the sea.', 'I am well.', 'Old, but content.'),
    'bye': ('Walk in peace.', 'May your road be short.', 'Until we meet.'),
  },
  'dramatic': {
    'openers': ('Behold!', 'Alas!', 'By the stars!', 'Hear me!'),
    'hello': ('At last you are here!', 'Who enters my tale?', 'You came!'),
    'well': ('My heart is a storm!', 'I shine!', 'I suffer, but I live!'),
    'bye': ('Farewell, farewell!', 'Do not forget me!', 'The curtain falls.'),
  },
  'dreamy': {
    'openers': ('Mmm,', 'Oh, look, a cloud.', 'Softly now:', 'I think'),
    'hello': ('Oh, are you real?', 'Hello, little star.', 'Mmm, hello.'),
    'well': ('I am half asleep.', 'I float.', 'I feel like a warm cloud.'),
    'bye': ('Dream well.', 'Drift home softly.', 'Until the next dream.'),
  },
  'polite': {
    'openers': ('Certainly.', 'Thank you for asking.', 'Of course.', 'Indeed,'),
    'hello': ('Good day to you.', 'How do you do?', 'Welcome, dear guest.'),
    'well': ('Very well, thank you.', 'Quite well.', 'I cannot complain.'),
    'bye': ('It was a pleasure.', 'Good day.', 'Do come again.'),
  },
  'playful': {
    'openers': ('Hee hee!', 'Guess what!', 'Ooh!', 'Tick tock!'),
    'hello': ('Boo! It is me!', 'Hey hey!', 'You found me!'),
    'well': ('I could jump to the moon!', 'Bouncy!', 'Ready to play!'),
    'bye': ('Catch me next time!', 'Bye bye, butterfly!', 'Zoom! Bye!'),
  },
}
TRAITS = (
  'curious', 'brave', 'patient', 'clever', 'gentle', 'stubborn', 'honest',
  'lazy', 'proud', 'careful', 'loyal', 'funny', 'quiet', 'kind', 'busy',
)  # fmt: skip
CATCHWORDS = (
  'Ahoy!', 'Beep boop!', 'Tra-la!', 'Oh my whiskers!', 'Jolly good!',
  'Great gears!', 'Hum hum!', 'Brrr!', 'Yippee!', 'Heave ho!', 'Goodness!',
  'Bless my boots!', 'Meow!', 'Whoosh!', 'Holy moly!', 'Snap!', 'Aha!',
  'Crumbs!', 'Ding dong!', 'Moo!',
)  # fmt: skip

SYLLABLES = (
  'ba', 'bel', 'bo', 'da', 'del', 'do', 'fa', 'fen', 'ga', 'gor', 'ha', 'hol',
  'i', 'jo', 'ka', 'kel', 'la', 'len', 'li', 'lo', 'ma', 'mi', 'mo', 'na',
  'nel', 'ni', 'o', 'pa', 'pi', 'ra', 'ri', 'ro', 'sa', 'sel', 'si', 'ta',
  'ti', 'to', 'u', 'va', 'vi', 'wil', 'ya', 'zo',
)  # fmt: skip
ENDINGS = ('a', 'an', 'as', 'e', 'el', 'en', 'i', 'ia', 'in', 'is', 'o', 'on',
           'ra', 'rin', 'ta', 'to', 'us', 'y')  # fmt: skip
NAMES = (
  'Anna', 'Ben', 'Clara', 'David', 'Ella', 'Finn', 'Grace', 'Hugo', 'Ida',
  'Jack', 'Kate', 'Leo', 'Lena', 'Lucy', 'Max', 'Maria', 'Mia', 'Nina',
  'Oscar', 'Paul', 'Peter', 'Rosa', 'Sam', 'Sara', 'Tim', 'Tom', 'Will', 'Zoe',
)  # fmt: skip

JOBS = (
  'a baker', 'a sailor', 'a gardener', 'a teacher', 'a painter', 'a farmer',
  'a robot', 'a wizard', 'a witch', 'a knight', 'a pirate', 'a dragon',
  'a doctor', 'a cook', 'a singer', 'a fox', 'an old owl', 'a librarian',
  'a clockmaker', 'a beekeeper', 'a shepherd', 'a detective', 'a tailor',
  'an inventor', 'an explorer', 'a ghost', 'a queen', 'a king', 'a mermaid',
  'a lighthouse keeper', 'a postman', 'a carpenter', 'a fisherman',
  'a star pilot', 'a train driver', 'a bear', 'a space captain', 'a monk',
)  # fmt: skip
SITES = (
  'a cottage', 'a tower', 'a windmill', 'a castle', 'a cave', 'a boat',
  'a tent', 'a red house', 'a small house', 'a tree house', 'a cabin',
  'a lighthouse', 'an old barn', 'a library', 'a garden shed', 'a blue house',
  'a village', 'a palace', 'a caravan', 'a workshop',
)  # fmt: skip
LOCATIONS = (
  'by the sea', 'by the river', 'on a hill', 'in the forest', 'on the moon',
  'near the market', 'under the bridge', 'in the mountains', 'by a lake',
  'at the end of the road', 'in the city', 'on an island', 'in the snow',
  'in the desert', 'above the clouds', 'behind the school', 'near the harbour',
)  # fmt: skip
TASTES = (
  'plum', 'apple', 'cherry', 'lemon', 'honey', 'carrot', 'potato', 'onion',
  'cheese', 'mushroom', 'pumpkin', 'tomato', 'nut', 'berry', 'pear', 'garlic',
)  # fmt: skip
DISHES = (
  'cake', 'soup', 'pie', 'bread', 'tea', 'jam', 'stew', 'salad', 'pudding',
  'pancakes', 'ice cream', 'dumplings', 'tart', 'juice', 'rolls',
)  # fmt: skip
COLOURS = (
  'red', 'blue', 'green', 'yellow', 'purple', 'orange', 'silver', 'gold',
  'black', 'white', 'grey', 'pink', 'brown', 'violet', 'sky blue', 'dark red',
)  # fmt: skip
LIKES = (
  'rain', 'old maps', 'music', 'the sea', 'the stars', 'flowers', 'books',
  'snow', 'quiet mornings', 'long walks', 'puzzles', 'birds', 'old songs',
  'the smell of bread', 'trains', 'stories', 'clocks', 'candles', 'dancing',
  'gold coins', 'riddles', 'bees', 'warm socks', 'the wind', 'shells',
  'fireworks', 'letters', 'sleeping late', 'roses', 'the full moon', 'chess',
  'kites', 'sunny days', 'football', 'pizza', 'chocolate', 'coffee', 'cats',
)  # fmt: skip
HOBBIES = (
  'paint boats', 'play the flute', 'read old books', 'fly kites',
  'bake bread', 'climb trees', 'count the stars', 'sing in the rain',
  'dance at night', 'collect stones', 'write poems', 'draw maps',
  'play chess', 'knit socks', 'swim in the lake', 'feed the birds',
  'grow roses', 'repair clocks', 'ride horses', 'play the drum',
  'fish at dawn', 'build small boats', 'tell stories', 'cook soup',
  'look at clouds', 'play football', 'watch the rain', 'plant trees',
)  # fmt: skip
ANIMALS = (
  'cat', 'dog', 'parrot', 'mouse', 'goat', 'horse', 'rabbit', 'turtle', 'owl',
  'fox', 'duck', 'hen', 'frog', 'pony', 'crow', 'snail', 'hamster', 'goose',
)  # fmt: skip
COATS = ('black', 'white', 'grey', 'brown', 'small', 'fat', 'lazy', 'old',
         'young', 'red', 'clever', 'noisy')  # fmt: skip
FEARS = (
  'thunder', 'spiders', 'the dark', 'deep water', 'ghosts', 'high places',
  'loud noises', 'snakes', 'fire', 'wolves', 'being late', 'empty rooms',
  'the cold', 'big dogs', 'bats', 'storms', 'rust', 'mirrors', 'wasps',
)  # fmt: skip
DREAMS = (
  'see the sea', 'build a boat', 'fly to the moon', 'find a treasure',
  'write a book', 'learn to dance', 'open a shop', 'meet a dragon',
  'travel the world', 'plant a forest', 'win a race', 'learn to fly',
  'sing on a stage', 'sleep for a week', 'build a bridge', 'find my brother',
  'cook for the queen', 'see the north', 'catch a star', 'paint the sky',
)  # fmt: skip
PLACES = (
  'market', 'harbour', 'library', 'forest', 'kitchen', 'garden', 'station',
  'castle', 'beach', 'old inn', 'tower', 'workshop', 'school', 'park',
  'bridge', 'ship', 'museum', 'mountain', 'river', 'town square',
)  # fmt: skip
# Topics of users.
THINGS = (
  'lamp', 'boat', 'key', 'stone', 'book', 'letter', 'map', 'bell', 'hat',
  'ring', 'coin', 'box', 'kite', 'clock', 'spoon', 'mirror', 'ball', 'ladder',
)  # fmt: skip
TOPICS = (
  'France', 'computers', 'the law', 'physics', 'football', 'China', 'money',
  'the news', 'politics', 'the internet', 'history', 'Paris', 'planes',
  'cars', 'black holes', 'the president', 'taxes', 'medicine', 'math',
  'Germany', 'space', 'the stock market', 'phones', 'a fridge', 'algebra',
)  # fmt: skip
RELATIVES = ('mother', 'father', 'sister', 'brother', 'friend', 'son',
             'daughter', 'boss', 'teacher', 'neighbour')  # fmt: skip
STORY_ADJECTIVES = ('small', 'brave', 'sleepy', 'hungry', 'lonely', 'clever',
                    'tiny', 'old')  # fmt: skip
