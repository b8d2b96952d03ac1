"""Generated lines of every kind a voice must know: questions, dialogue, numbers, dates, prices, directions, weather,
what assistants say, narrative, and short declaratives from a small grammar with a wide vocabulary.

A template's `{slot}` becomes a random word of that kind; `{slot2}` another one. Lines come as a person would write them
for a voice to read: numbers are words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from training import words as w

Make = Callable[[random.Random], str]

#: Words whose first letter misleads about the article.
_A_BEFORE = re.compile(r"(one|once|u[nks]e|uni[^mn]|useful|useless|usual|euro)", re.IGNORECASE)
_AN_BEFORE = re.compile(r"(hour|honest|heir)", re.IGNORECASE)


def number_words(value: int) -> str:
    """English words of 0 <= value < 10**9, as spoken ("three hundred and five")."""
    if not 0 <= value < 10**9:
        raise ValueError(f"number_words takes 0 <= value < 10**9, got {value}")
    if value < 20:
        return w.ONES[value]
    if value < 100:
        return w.TENS[value // 10] + (f"-{w.ONES[value % 10]}" if value % 10 else "")
    for size, word in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            head, rest = divmod(value, size)
            glue = " and " if rest < 100 else " "
            return f"{number_words(head)} {word}" + (glue + number_words(rest) if rest else "")
    raise AssertionError("unreachable: every value of 100 or more has a hundred")


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith("f") and not noun.endswith(("ff", "oof", "eef")):
        return f"{noun[:-1]}ves"
    return {"knife": "knives", "tooth": "teeth", "mouse": "mice", "goose": "geese", "sheep": "sheep"}.get(
        noun, f"{noun}s"
    )


def _place(rng: random.Random) -> str:
    return rng.choice((rng.choice(w.CITIES), rng.choice(w.COUNTRIES), f"the {rng.choice(w.SPOTS)}"))


def _year(rng: random.Random) -> str:
    century, rest = rng.randint(14, 20), rng.randint(1, 99)
    return f"{number_words(century)} " + (number_words(rest) if rest > 9 else f"oh {number_words(rest)}")


def _minute(rng: random.Random) -> str:
    return rng.choice(
        ("", "", " fifteen", " thirty", " forty-five", " oh five", f" {number_words(rng.randint(10, 59))}")
    )


def _from(options: tuple[str, ...]) -> Make:
    return lambda rng: rng.choice(options)


_SLOTS: dict[str, Make] = {
    "name": _from(w.NAMES),
    "surname": _from(w.SURNAMES),
    "city": _from(w.CITIES),
    "country": _from(w.COUNTRIES),
    "place": _place,
    "spot": _from(w.SPOTS),
    "room": _from(w.ROOMS),
    "thing": _from(w.THINGS),
    "things": lambda rng: _plural(rng.choice(w.THINGS)),
    "mass": _from(w.MASS),
    "animal": _from(w.ANIMALS),
    "animals": lambda rng: _plural(rng.choice(w.ANIMALS)),
    "person": _from(w.PEOPLE),
    "food": _from(w.FOODS),
    "weather": _from(w.WEATHER),
    "device": _from(w.DEVICES),
    "adjective": _from(w.ADJECTIVES),
    "colour": _from(w.COLOURS),
    "adverb": _from(w.ADVERBS),
    "verb": lambda rng: rng.choice(w.VERBS)[0],
    "verbed": lambda rng: rng.choice(w.VERBS)[1],
    "verbing": lambda rng: rng.choice(w.VERBS)[2],
    "moved": lambda rng: rng.choice(w.MOVES)[0],
    "move": lambda rng: rng.choice(w.MOVES)[1],
    "preposition": _from(w.PREPOSITIONS),
    "day": _from(w.DAYS),
    "month": _from(w.MONTHS),
    "ordinal": _from(w.ORDINALS),
    "letter": _from(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    "digit": _from(w.ONES[:10]),
    "few": lambda rng: number_words(rng.randint(2, 12)),
    "number": lambda rng: number_words(rng.randint(2, 99)),
    "big": lambda rng: number_words(rng.randrange(100, 10 ** rng.randint(3, 7))),
    "unit": _from(w.UNITS),
    "year": _year,
    "hour": lambda rng: number_words(rng.randint(1, 12)),
    "minute": _minute,
    "part": _from(("morning", "afternoon", "evening", "night")),
    "who": _from(("he", "she", "they", "we", "I", "you", "the children", "my parents", "everyone", "nobody")),
    "his": _from(("his", "her", "their", "my", "our", "your")),
    "side": _from(("left", "right", "north", "south", "east", "west")),
}

_QUESTIONS = (
    "Where can I {verb} a {adjective} {thing}?",
    "Did {name} {verb} the {thing} yesterday?",
    "Why would anyone {verb} that {thing}?",
    "Have you ever been to {place}, {name}?",
    "Can you {verb} the {thing} before {day}?",
    "Who told {name} about the {adjective} {thing}?",
    "How many {things} does it take to fill the {spot}?",
    "Is it true that {name} lives near {place}?",
    "Would you rather {verb} a {thing} or {verb2} a {thing2}?",
    "What happens if we {verb} it again?",
    "When does the next train leave for {city}?",
    "Isn't the {thing} a little too {adjective}?",
    "Do you want {food} or {food2}?",
    "Which {person} {verbed} the {colour} {thing}?",
    "How far is it from {city} to {city2}?",
    "Whose {thing} is this, and why is it so {adjective}?",
    "What did the {person} say when the {animal} {moved} away?",
    "Shall we meet at the {spot} around {hour}{minute}?",
    "Could you please tell me where the {spot} is?",
    "Are there any {adjective} {things} left in the {room}?",
    "What's the weather like in {city} this {part}?",
    "How old is the {person}, {number} or {number2}?",
    "Does the {device} work, or should I call {name}?",
    "Who wants to {verb} the {animal} this {part}?",
)
_STATEMENTS = (
    "{name} will {verb} the {thing} on {day}.",
    "Please {verb} the {adjective} {thing} near {place}.",
    "I never wanted to {verb} a {thing}, but here we are!",
    "The {adjective} {thing} belongs to {name} {surname}.",
    "They met {name} at the {spot}, and everyone began to laugh.",
    "First {verb} the {thing}; then {verb2} the {thing2}.",
    "What a {adjective} {thing}!",
    "{name}, {name2} and {name3} went to {place} together.",
    "My neighbour, {name} {surname}, likes to {verb} every {thing} she sees.",
    "It was a {adjective}, {adjective2} evening in {city}.",
    "Nobody knew how to {verb} the {thing}, so {name} asked for help.",
    "Doctor {surname} says you should {verb} more often.",
    "I think {who} {verbed} the wrong {thing}.",
    "If you {verb} the {thing}, I will {verb2} the {thing2}.",
    "{name} is {verbing} {his} {thing} in the {room}.",
    "We are {verbing} {few} {things} for the {person}.",
    "I would like {food}, {food2}, and nothing else.",
    "There is nothing {adjective} about {verbing} a {thing}.",
    "Mister {surname} has been {verbing} {things} since {year}.",
    "The {person} from {country} speaks {few} languages.",
    "You can't {verb} {mass} with a {thing}!",
    "After {verbing} the {thing}, {name} {moved} {adverb} home.",
    "Some {animals} are {adjective}, others are {adjective2}.",
    "Don't {verb} the {adjective} {thing}; it isn't yours.",
)
#: Short declaratives of everyday words.
_DECLARATIVES = (
    "The {adjective} {thing} {moved} {preposition} the {thing2}.",
    "The {person} {verbed} the {adjective} {thing}.",
    "A {adjective} {animal} {moved} {preposition} the {thing}.",
    "{verb} the {thing} {preposition} the {adjective} {thing2}.",
    "The {mass} was {adjective} and {adjective2}.",
    "There was a {adjective} {thing} {preposition} the {spot}.",
    "It is {adjective} to {verb} {things} with a {thing}.",
    "{who} {verbed} {his} {thing} and {moved} {adverb}.",
    "The {thing} of the {thing2} is {adjective}.",
    "{few} {things} {moved} {preposition} the {thing}.",
    "Both the {thing} and the {thing2} are {adjective}.",
    "The {animal} {verbed} the {adjective} {thing} {adverb}.",
    "Put the {mass} {preposition} the {thing}.",
    "{mass} and {mass2} make a {adjective} {thing}.",
    "The {person} wore a {colour} {thing} and a {colour2} {thing2}.",
    "Every {thing} in the {room} was {adjective}.",
    "A {thing} of {mass} {moved} {preposition} the {thing2}.",
    "When the {thing} {moved}, the {animals} {moved2}.",
    "Use a {thing} to {verb} the {adjective} {mass}.",
    "The {things} were {adjective}, but the {thing} was {adjective2}.",
    "No {thing} is as {adjective} as a {adjective2} {thing2}.",
    "{who} had to {verb} the {thing} {preposition} the {spot}.",
    "The {colour} {thing} and the {colour2} {thing2} are {his}s.",
    "A {person} with a {adjective} {thing} {moved} {adverb}.",
    "The {thing} fell {preposition} the {mass}.",
    "{adverb} the {adjective} {animal} {moved} away.",
    "They {verbed} the {thing}, {verbed2} the {thing2}, and {moved}.",
    "The {person} gave the {animal} some {mass}.",
)
_DIALOGUE = (
    "Well, said {name}, we can always {verb} it tomorrow.",
    "{name}, could you {verb} the {thing}? I'm {verbing2} the {thing2}.",
    "Oh no, the {thing} is {adjective} again!",
    "I don't know, {name}. Ask the {person}.",
    "That's {adjective}! Did you {verb} it yourself?",
    "Sorry I'm late; the {device} was {adjective}.",
    "You'll never guess what {name} {verbed} at the {spot}.",
    "Come on, {name}, let's {verb} the {thing} before it gets dark.",
    "Thank you, {name}, that's very {adjective} of you.",
    "Really? I thought the {person} {verbed} it {adverb}.",
    "Wait, {name}! You forgot your {thing}!",
    "No, I said {number}, not {number2}.",
    "Hello, {name}. How was {place}?",
    "I'm {adjective}, and so is {name}.",
    "Hush, you'll wake the {animal}!",
)
_ASSISTANT = (
    "Okay, I've turned on the {device} in the {room}.",
    "The {device} is now set to {number} percent.",
    "I've set a timer for {number} minutes.",
    "Your alarm is set for {hour}{minute} in the morning.",
    "I'm sorry, I didn't catch that. Could you say it again?",
    "You have {few} new messages from {name} {surname}.",
    "Calling {name} {surname} now.",
    "Your package will arrive on {day}, between {hour} and {hour2}.",
    "Please hold while I transfer you to the {person}.",
    "Your order number is {digit} {digit2} {digit3} {digit4}.",
    "Press {digit} to speak to an agent, or {digit2} to hear this again.",
    "Your appointment with Doctor {surname} is on {month} {ordinal} at {hour}{minute}.",
    "Would you like me to add {food} to your shopping list?",
    "I found {few} {adjective} hotels near the {spot}.",
    "Your flight to {city} is delayed by {number} minutes.",
    "The train to {city} now departs from platform {few}.",
    "Gate {letter}{number} is closing in {few} minutes.",
    "Thank you for calling. How can I help you today?",
    "Your balance is {big} {unit}.",
    "Reminder: {verb} the {thing} at {hour}{minute}.",
    "The {spot} opens at {hour} and closes at {hour2} on {day}.",
    "Playing {adjective} music in the {room}.",
    "I can't {verb} that yet, but I can {verb2} it for you.",
    "Please say your name after the tone.",
    "Please confirm your code: {letter}, {digit}, {letter2}, {digit2}.",
)
_DIRECTIONS = (
    "Turn {side} at the {spot}, then go straight for {few} miles.",
    "In {big} meters, turn {side} onto {surname} Street.",
    "Take the {ordinal} exit toward {city}.",
    "Keep {side} at the fork, past the {adjective} {thing}.",
    "The {spot} is on your {side}, next to the {spot2}.",
    "Walk {preposition} the {spot} until you see a {colour} {thing}.",
    "Take the elevator to the {ordinal} floor and turn {side}.",
    "Make a U-turn at the {spot} when it is safe.",
    "Follow the {colour} signs to the {spot}.",
    "It is about {number} kilometers {side} of {city}.",
)
_WEATHER = (
    "Expect {weather} in {city} this {part}, with a high of {number}.",
    "Tomorrow brings {weather}, then {weather2} by {day}.",
    "It is {number} degrees and {adjective} in {city} right now.",
    "There will be {weather} across {country} on {day}.",
    "A storm will reach the {side} coast by {hour} in the {part}.",
    "Tonight will be {adjective}, with {weather} toward morning.",
    "The temperature will fall to minus {few} degrees overnight.",
)
_NARRATIVE = (
    "In the {part}, the {person} {verbed} the {thing} and {moved} {preposition} the {spot}.",
    "Long ago, in {country}, a {adjective} {person} lived {preposition} a {adjective2} {spot}.",
    "{name} opened the {thing}, found a {adjective} {thing2} inside, and {verbed} it at once.",
    "The {animal} looked at {name}, {moved} once, and {moved2} {preposition} the {thing}.",
    "By the time {name} reached the {spot}, the {person} had {moved} {adverb}.",
    "For {number} days the {person} {verbed} nothing but {mass} and {mass2}.",
    "All through the {part} the {mass} lay {preposition} the {spot}, {adjective} and {adjective2}.",
    "No one at the {spot} remembered who had {verbed} the {colour} {thing}.",
    "It happened on a {adjective} {day} in {month}, when {name} was {number} years old.",
    "The {person} was {adjective}; the {person2}, on the other hand, was {adjective2}.",
    "Beyond the {spot} there was a {spot2}, and beyond that nothing but {mass}.",
    "{name} said that the {thing} was {adjective}, which made the {person} laugh.",
    "Although the {thing} was {adjective}, {who} {verbed} it {adverb} and never spoke of it again.",
)
_COOKING = (
    "Add {few} cups of {mass} and stir {adverb}.",
    "Bake the {thing} for {number} minutes at {big} degrees.",
    "Heat the {mass}, pour it {preposition} the {thing}, and wait {few} minutes.",
    "For lunch we had {food}, and for dinner {food2}.",
    "Mix the {mass} with {few} spoons of {mass2}.",
    "The recipe calls for {food} and a pinch of salt.",
)
_NUMBERS = (
    "{big}.",
    "{number}.",
    "That will be {big} {unit}.",
    "It took {big} {unit} to reach {place}.",
    "The answer is {number} point {digit} {digit2}.",
    "Chapter {number}.",
    "About {big} {unit} more than last year.",
    "{number} plus {number2} is {number3}.",
    "{few} times {few2} makes {number}.",
    "Only {number} out of {big} {unit} were counted.",
    "The {thing} costs {number} dollars and {number2} cents.",
    "That's {number} euros {number2}, please.",
    "A ticket to {city} is {number} pounds fifty.",
    "Prices rose by {few} point {digit} percent.",
    "The {spot} is {big} feet long and {number} feet wide.",
    "One half, two thirds, three quarters.",
    "Page {big}, line {number}.",
    "Room {digit} {digit2} {digit3}, on the {ordinal} floor.",
)
_DATES = (
    "{month} {ordinal}, {year}.",
    "On {day}, the {ordinal} of {month}, we open at {hour}{minute}.",
    "She was born on {month} {ordinal}, {year}.",
    "The meeting starts at {hour}{minute} in the {part}.",
    "It is half past {hour} on {day}.",
    "It's {hour}{minute} p m.",
    "The {spot} was built in {year} and rebuilt in {year2}.",
    "From {day} to {day2}, the {spot} is closed.",
    "A quarter to {hour}.",
    "See you on {day} at {hour} o'clock.",
    "In {month} {year}, {name} moved to {city}.",
)
_FRAGMENTS = (
    "{adjective} {thing}", "the {adjective} {thing}", "{preposition} the {thing}", "{preposition} the {spot}",
    "a {adjective} {animal}", "{name} {surname}", "very {adjective}", "too {adjective}", "not {adjective}",
    "{number} {unit}", "{few} {things}", "{verb} it", "{verb} the {thing}", "{who} {moved}", "{name} {moved}",
    "{adverb}, {name}", "{colour} {things}", "{mass} and {mass2}", "{thing} or {thing2}", "{city}, {country}",
    "{day} {part}", "{month} {ordinal}", "more {mass}", "no {things}", "good {animal}", "my {person}",
    "{verbing} {things}",
    "{adjective}, {adjective2}", "so {adjective}", "{hour}{minute}", "Doctor {surname}", "{who} {verbed} it", "{food}",
    "{weather}", "{ordinal} floor", "what {thing}", "which {person}", "where's the {thing}", "{person} and {person2}",
)  # fmt: skip


def _polish(line: str) -> str:
    """Right articles before vowels, a capital at the start, no word twice in a row."""

    def article(match: re.Match[str]) -> str:
        word = match[2]
        vowel = bool(_AN_BEFORE.match(word)) or (word[0].lower() in "aeiou" and not _A_BEFORE.match(word))
        return f"{match[1]}{'n' if vowel else ''} {word}"

    line = re.sub(r"\b([Aa]) ([A-Za-z]+)", article, line)
    line = re.sub(r"\b(\w+) \1\b", r"\1", line)
    return line[0].upper() + line[1:]


def fill(template: str, rng: random.Random) -> str:
    """The template with its slots filled."""
    line = re.sub(r"{([a-z]+?)\d?}", lambda match: _SLOTS[match[1]](rng), template)
    return _polish(line.replace("mys.", "mine.").replace("hiss.", "his."))


def _digits(rng: random.Random) -> str:
    groups = [" ".join(rng.choice(w.ONES[:10]) for _ in range(size)) for size in (3, rng.choice((3, 4)), 4)]
    return rng.choice(("", "Call ", "My number is ", "The code is ")) + ", ".join(groups) + "."


def _letters(rng: random.Random) -> str:
    letters = " ".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(1, 6)))
    return rng.choice((f"{letters}.", f"It is spelled {letters}.", f"Gate {letters[0]} {rng.choice(w.ONES)}."))


def _list(rng: random.Random) -> str:
    items = [f"the {rng.choice(w.ADJECTIVES)} {thing}" for thing in rng.sample(w.THINGS, rng.randint(2, 5))]
    return rng.choice(
        (f"I need {', '.join(items[:-1])} and {items[-1]}.", f"{', '.join(items[:-1])}, or {items[-1]}?".capitalize())
    )


def _templates(*templates: str) -> Make:
    return lambda rng: fill(rng.choice(templates), rng)


_KINDS: tuple[tuple[float, Make], ...] = (
    (3.0, _templates(*_QUESTIONS)),
    (3.0, _templates(*_STATEMENTS)),
    (8.0, _templates(*_DECLARATIVES)),
    (1.5, _templates(*_DIALOGUE)),
    (1.5, _templates(*_ASSISTANT)),
    (0.6, _templates(*_DIRECTIONS)),
    (0.5, _templates(*_WEATHER)),
    (2.0, _templates(*_NARRATIVE)),
    (0.4, _templates(*_COOKING)),
    (1.5, _templates(*_NUMBERS)),
    (0.8, _templates(*_DATES)),
    (0.5, _digits),
    (0.5, _letters),
    (0.5, _list),
    (0.2, lambda rng: f"{rng.choice(w.NAMES)} {rng.choice(w.SURNAMES)}{rng.choice('.!?')}"),
)
#: Shares of generated lines that lose their full stop, and their capitals.
_UNSTOPPED, _LOWER = 0.06, 0.03


def _distinct(count: int, make: Make, rng: random.Random, first: tuple[str, ...] = ()) -> list[str]:
    lines = dict.fromkeys(first[:count])
    while len(lines) < count:
        lines[make(rng)] = None
    return list(lines)


def _any_kind(rng: random.Random) -> str:
    weights, makers = zip(*_KINDS, strict=True)
    line: str = rng.choices(makers, weights)[0](rng)
    if rng.random() < _UNSTOPPED:
        line = line.removesuffix(".")
    return line.lower() if rng.random() < _LOWER else line


def generated(count: int, seed: int) -> list[str]:
    """`count` different generated lines; the same seed gives the same lines."""
    return _distinct(count, _any_kind, random.Random(seed))


def sentences(count: int, seed: int) -> list[str]:
    """`count` different sentences that may stand beside each other in a longer text."""
    make = _templates(*_STATEMENTS, *_DECLARATIVES, *_NARRATIVE, *_QUESTIONS)
    return _distinct(count, make, random.Random(seed))


def fragments(count: int, seed: int) -> list[str]:
    """`count` different utterances of one to five words, the common greetings first."""

    def make(rng: random.Random) -> str:
        phrase = fill(rng.choice(_FRAGMENTS), rng)
        return (phrase.lower() if rng.random() < 0.2 else phrase) + rng.choice((".", ".", ".", "!", "?", ""))

    return _distinct(count, make, random.Random(seed), w.GREETINGS)
