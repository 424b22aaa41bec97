"""Looser language for training: relations made of arbitrary words, small edits of wordings, asides.

The relations of relations.py are few, and a model could learn them by heart. Here a verb or noun of the question is any
word at all, and the only way to the answer is the same word in the document.
"""

from __future__ import annotations

import random

from .inventory import Inventory, held_out_words, spliced
from .prose import Prose
from .wordings import (
    EP_ASK,
    EP_SAY,
    EV_ASK,
    EV_SAY,
    VE_ASK,
    VE_SAY,
    held_exactly,
    in_frame,
    normalised,
    parse_verb,
)

# (sentence, questions, kind of value); {w} and {x} are arbitrary words, {p} a preposition.
PATTERNS = (
    ("{e} {w}s {v}.", ("What does {e} {w}?", "Which thing does {e} {w}?"), "phrase"),
    ("{e} has {w}ed {v}.", ("What has {e} {w}ed?",), "phrase"),
    ("{e} can {w} {v}.", ("What can {e} {w}?",), "phrase"),
    ("{e} is {w}ed by {v}.", ("Who {w}s {e}?", "By whom is {e} {w}ed?", "Who has {w}ed {e}?"), "person"),
    ("{v} {w}s {e}.", ("Who {w}s {e}?", "Who is it that {w}s {e}?", "By whom is {e} {w}ed?"), "person"),
    ("{v} {w}ed {e} last year.", ("Who {w}ed {e}?", "Who {w}ed {e} last year?"), "person"),
    ("To {w} {e}, ask {v}.", ("Whom do I ask to {w} {e}?", "Who helps to {w} {e}?"), "person"),
    ("{v} is there to {w} {e}.", ("Who is there to {w} {e}?",), "person"),
    ("{e} is {w}ed {p} {v}.", ("What is {e} {w}ed {p}?", "{p} what is {e} {w}ed?"), "phrase"),
    ("{e} {w}s {p} {v}.", ("What does {e} {w} {p}?", "{p} what does {e} {w}?"), "phrase"),
    ("{e} {w}s {p} {v}.", ("Where does {e} {w}?", "{p} which place does {e} {w}?"), "place"),
    ("{e} was {w}ed in {v}.", ("Where was {e} {w}ed?", "In which town was {e} {w}ed?"), "town"),
    ("The {w} {x} of {e} is {v}.", ("What is the {w} {x} of {e}?", "Which {w} {x} does {e} have?"), "phrase"),
    ("{e} has the {w} {x} {v}.", ("What is the {w} {x} of {e}?", "Which {w} {x} does {e} have?"), "code"),
    ("The {w} of {e} is {v}.", ("What is the {w} of {e}?", "What {w} does {e} have?"), "code"),
    ("The {w} of {e} was {v}.", ("What was the {w} of {e}?", "How high was the {w} of {e}?"), "money"),
    ("{v} is the {w} of {e}.", ("Who is the {w} of {e}?", "Who is {w} of {e}?"), "person"),
    ("The {w} for {e} is called {v}.", ("What is the {w} for {e} called?",), "company"),
    ("{v} became {w} of {e}.", ("Who became {w} of {e}?",), "person"),
    ("The {x} that {w}s {e} is {v}.", ("Which {x} {w}s {e}?", "What is the {x} that {w}s {e}?"), "phrase"),
    ("{e} has {v} {w}s.", ("How many {w}s does {e} have?", "What number of {w}s does {e} have?"), "quantity"),
    ("There are {v} {w}s at {e}.", ("How many {w}s are there at {e}?",), "quantity"),
    ("Each {x} of {e} has {v} {w}s.", ("How many {w}s does each {x} of {e} have?",), "quantity"),
    ("{e} {w}s at {v}.", ("When does {e} {w}?", "At what time does {e} {w}?"), "clock"),
    ("{e} will be {w}ed on {v}.", ("When will {e} be {w}ed?", "On which date will {e} be {w}ed?"), "date"),
    ("{e} was {w}ed in {v}.", ("When was {e} {w}ed?", "In which year was {e} {w}ed?"), "year"),
    ("{e} is {w}ed every {v}.", ("How often is {e} {w}ed?", "When is {e} {w}ed?"), "weekday"),
    ("It takes {v} to {w} {e}.", ("How long does it take to {w} {e}?",), "hours"),
    ("{e} {w}s after {v}.", ("After how long does {e} {w}?", "When does {e} {w}?"), "days"),
    ("{e} {w}s up to {v}.", ("How much does {e} {w}?", "Up to what does {e} {w}?"), "mass"),
    ("{e} {w}s no more than {v}.", ("How much does {e} {w} at most?",), "money"),
    ("{w} {e} with {v}.", ("With what should I {w} {e}?", "What do I {w} {e} with?"), "tool"),
    ("Never {w} {e} without {v}.", ("Without what must I never {w} {e}?",), "gear"),
    ("{e} is {w} and {v}.", ("Apart from {w}, what is {e}?",), "colour"),
    ("Because of {v}, {e} had to {w}.", ("Why did {e} have to {w}?",), "reason"),
    ("{e} {w}s because of {v}.", ("Why does {e} {w}?",), "reason"),
    ("In the {w}, {e} uses {v}.", ("What does {e} use in the {w}?",), "phrase"),
    ("{e} gets its {w}s from {v}.", ("Where does {e} get its {w}s?", "From whom does {e} get its {w}s?"), "company"),
    ("People at {e} {w} {v}.", ("What do people at {e} {w}?",), "phrase"),
    ("{w}s at {e} go {p} {v}.", ("{p} what do {w}s at {e} go?", "Where do {w}s at {e} go?"), "place"),
    ("The {x} of {e} belongs to {v}.", ("To whom does the {x} of {e} belong?", "Who owns the {x} of {e}?"), "person"),
    ("{v} {w}s the {x} of {e}.", ("Who {w}s the {x} of {e}?", "Which firm {w}s the {x} of {e}?"), "company"),
    ("{v} looks after the {x} of {e}.", ("Who looks after the {x} of {e}?",), "person"),
    ("The {x} {w}s {v} at {e}.", ("What does the {x} {w} at {e}?",), "phrase"),
    ("{v} {x}s are kept at {e} for {w}.", ("How many {x}s are kept at {e} for {w}?",), "quantity"),
    ("The {x} opposite {e} {w}s at {v}.", ("When does the {x} opposite {e} {w}?",), "clock"),
    ("From {e} to the {x} the {w} takes {v}.", ("How long does the {w} from {e} to the {x} take?",), "hours"),
    ("Those who {w} {e} get {v}.", ("What do those get who {w} {e}?", "How much do those who {w} {e} get?"), "money"),
    ("{x}s who {w} {e} pay {v}.", ("What do {x}s pay who {w} {e}?", "How much do {x}s who {w} {e} pay?"), "money"),
    ("Above {v}, {e} does not {w}.", ("Above what does {e} not {w}?", "Above which {x} does {e} not {w}?"), "length"),
    ("When the {x} is over {v}, {e} will not {w}.", ("Over what {x} will {e} not {w}?",), "speed"),
    ("The {x}s of {e} wear {v}.", ("What do the {x}s of {e} wear?", "What does a {x} of {e} wear?"), "phrase"),
    ("The {w}s of the {x} at {e} are {v}.", ("What colour are the {w}s of the {x} at {e}?",), "colour"),
    ("The {w} of {e} goes to {v}.", ("Who gets the {w} of {e}?", "Which company gets the {w} of {e}?"), "company"),
    ("{e} is at the {x} {v}.", ("When is {e} at the {x}?", "On which dates is {e} at the {x}?"), "span"),
    ("{e} {w}s {v}.", ("When does {e} {w}?", "On which days does {e} {w}?"), "span"),
    ("The {x} of {e} is at {v}.", ("At which address is the {x} of {e}?", "Where is the {x} of {e}?"), "address"),
    ("No {x} may {w} {e} for {v}.", ("For how long may no {x} {w} {e}?",), "days"),
    (
        "At {v} the {x} of {e} {w}s.",
        ("At what time does the {x} of {e} {w}?", "When does the {x} of {e} {w}?"),
        "clock",
    ),
    ("The last {w} from {e} to {x} is at {v}.", ("When is the last {w} from {e} to {x}?",), "clock"),
    ("{x} gets {v} of leave at {e}.", ("How much leave does {x} get at {e}?",), "days"),
    ("A {x} costs {v} at {e}.", ("How much is a {x} at {e}?", "What does a {x} cost at {e}?"), "money"),
    ("A {x} for {e} is {v}.", ("How much is a {x} for {e}?", "What is the price of a {x} for {e}?"), "money"),
    ("For {x}s, {e} uses {v}.", ("What does {e} use for {x}s?", "Which {w} does {e} use for {x}s?"), "phrase"),
    ("If the {x} is late, {e} pays {v}.", ("How much does {e} pay if the {x} is late?",), "money"),
    (
        "{x}s must {w} {v} before {e}.",
        ("How long before {e} must {x}s {w}?", "When must {x}s {w} before {e}?"),
        "hours",
    ),
    ("{e} carries {v} {x}s and some {w}s.", ("How many {x}s does {e} carry?",), "quantity"),
    ("The {x} {p} {e} is the work of {v}.", ("Whose work is the {x} {p} {e}?",), "person"),
    ("{x} {w} at {e} is marked with {v}.", ("What marks {x} {w} at {e}?", "How is {x} {w} at {e} marked?"), "thing"),
    ("On {x} days {e} {w}s {v}.", ("What does {e} {w} on {x} days?",), "phrase"),
)
PREPOSITIONS = ("with", "to", "in", "on", "from", "by", "at", "for", "under", "into", "behind", "near")
# Question words and the kinds of value they ask for, for verbs made of arbitrary words.
ASKED = (
    ("what", "phrase"), ("which {x}", "phrase"), ("what {x}", "phrase"), ("how many {x}s", "quantity"),
    ("how much", "mass"), ("how much", "money"), ("which {x}", "code"), ("which number", "number4"),
    ("how long", "hours"), ("how far", "distance"), ("how many", "count"), ("what", "tool"), ("whom", "person"),
    ("which firm", "company"), ("which town", "town"), ("what place", "place"), ("which year", "year"),
    ("which day", "weekday"), ("what date", "date"), ("what time", "clock"), ("which colour", "colour"),
    ("what material", "material"), ("which goods", "goods"), ("what amount", "volume"), ("which part", "part"),
)  # fmt: skip
TIMED = (
    ("when", "clock", "at"), ("when", "date", "on"), ("when", "year", "in"), ("where", "place", "in"),
    ("where", "town", "in"), ("where", "site", "at"), ("how often", "interval", "every"), ("when", "weekday", "on"),
    ("how long", "days", "for"), ("how long", "months", "for"), ("how fast", "speed", "at"), ("how", "tool", "with"),
    ("why", "reason", "because of"), ("when", "span", "during"), ("where", "address", "at"),
    ("how long", "hours", "for"),
)  # fmt: skip
PARTICLES = ("", "", "", "", "", "up", "off", "out", "down", "away", "over", "back", "together")
OPENINGS = (
    "In practice, ", "At present, ", "As agreed, ", "Since the move, ", "By the way, ", "For now, ", "In most cases, ",
    "After a long search, ", "As the map shows, ", "According to the manual, ", "From this year on, ", "As a rule, ",
    "Unlike in the past, ", "In short, ", "To be exact, ", "Remember that ", "We confirm that ", "It is known that ",
    "The report says that ", "Everyone agrees that ", "In the {w}, ", "Despite the {w}, ", "With the new {w}, ",
)  # fmt: skip
ENDINGS = (
    " at present",
    ", as everybody knows", ", and this will not change", " for the time being", ", by the way", " again",
    ", which surprised nobody",
    ", as agreed", ", at least for now", " these days", ", according to the {w}", ", not the {w}",
    ", and has been for years", " without exception", ", whatever the {w}", " in theory and in practice", " as before",
)  # fmt: skip
JOINTS = (
    ", because",
    ", although",
    " so that",
    ", while",
    " when",
    ", and",
    ", but",
    ", since",
    ", unless",
    ", where",
    " and",
)
LEADS = (
    "Can you tell me: ",
    "Please tell me: ", "Quick question: ", "I would like to know: ", "Hello! ", "One more thing: ",
    "According to the documents: ", "For the {w}: ", "Help me: ", "We were wondering: ", "Question from the {w}: ",
)  # fmt: skip
TRAILS = (" Answer briefly.", " Thank you.", " Please answer.", " I forgot.", " It is about the {w}.", " Any idea?")
JOINING = ("and", "of", "for", "with", "the", "in", "or", "a", "to", "their", "by", "on", "before", "without")
SMALL_WORDS = frozenset(
    [
        "the",
        "a",
        "an",
        "of",
        "is",
        "at",
        "in",
        "on",
        "for",
        "to",
        "and",
        "its",
        "has",
        "are",
        "was",
        "by",
        "with",
        "from",
        "be",
        "do",
        "does",
        "please",
        "now",
    ]
)


class LooseLanguage:
    """Draws arbitrary words and varies wordings. For training only."""

    def __init__(self, prose: Prose, pieces: tuple[str, ...] = ()):
        self.prose = prose
        self.held = held = held_out_words()
        self.words = tuple(word for word in prose.words if word not in held)
        self.pieces = tuple(piece for piece in pieces if piece not in held)
        self.level = 1.0  # how loose the present context is, from 0 to 1
        self.all_pieces = pieces  # a held-out word may be part of another word

    def chance(self, share: float, rng: random.Random) -> bool:
        """True in `share` of the cases in the loosest contexts, never in the strictest ones."""
        return rng.random() < share * self.level

    def word(self, rng: random.Random) -> str:
        style = rng.random()
        if style < 0.3:
            made = spliced(self.words, rng)
            return made if made not in self.held else rng.choice(self.words)
        if self.pieces and style < 0.6:
            if rng.random() < 0.35:
                return rng.choice(self.pieces)
            made = rng.choice(self.all_pieces) + rng.choice(self.all_pieces)
            return made if made not in self.held else rng.choice(self.pieces)
        return rng.choice(self.words)

    def phrase(self, rng: random.Random) -> str:
        """One to four arbitrary words, at times with an article."""
        words = [self.word(rng) for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 4, 5)))]
        if len(words) > 2 and rng.random() < 0.5:
            words[-2] = rng.choice(JOINING)
        text = rng.choice(("", "", "", "", "a ", "the ", "the ", "two ", "some ", "an ", "their ")) + " ".join(words)
        return text[0].upper() + text[1:] if rng.random() < 0.12 else text

    def relation(self, inventory: Inventory, rng: random.Random) -> tuple[str, str, tuple[str, ...], str]:
        """(key, sentence, questions, value) of a relation made of arbitrary words."""
        if rng.random() < 0.5:
            return self.verb_relation(inventory, rng)
        say, asks, kind = rng.choice(PATTERNS)
        w, x, p = self.word(rng), self.word(rng), rng.choice(PREPOSITIONS)
        value = self.phrase(rng) if kind == "phrase" else inventory.value(kind, rng)

        def fill(text: str) -> str:
            return text.replace("{w}", w).replace("{x}", x).replace("{p}", p)

        return w, fill(say), tuple(fill(ask) for ask in asks), value

    def verb_relation(self, inventory: Inventory, rng: random.Random) -> tuple[str, str, tuple[str, ...], str]:
        """The same with a verb made of arbitrary words, in the frames that real verbs take."""
        w, x, style = self.word(rng), self.word(rng), rng.random()
        particle = rng.choice(PARTICLES)
        preposition = rng.choice(PREPOSITIONS) if style > 0.3 and rng.random() < 0.6 else ""
        verb = parse_verb(f"{w} {particle} @{preposition}")
        if style < 0.3:
            words: tuple[str, ...]
            person = rng.random() < 0.75
            kind, words = ("person", ("who", "which person", "who", f"which {x}")) if person else (
                "company", ("which firm", "which company", "who", f"which {x}")
            )  # fmt: skip
            frames, noun = (VE_SAY, VE_ASK), kind
        else:
            frames, noun = ((EV_SAY, EV_ASK) if style < 0.65 else (EP_SAY, EP_ASK)), "thing"
            if rng.random() < 0.5:
                word, kind = rng.choice(ASKED)
                words = (word.replace("{x}", x),)
                if kind not in ("phrase", "tool") and rng.random() < 0.3:
                    words = ("what",)
            else:
                word, kind, preposition = rng.choice(TIMED)
                words, verb = (f"-{word}",), parse_verb(f"{w} {particle} @{preposition}")
        value = self.phrase(rng) if kind == "phrase" else inventory.value(kind, rng)
        say = in_frame(frames[0], verb, words, noun, rng, False)
        return w, say, tuple(in_frame(frames[1], verb, words, noun, rng, True) for _ in range(2)), value

    def like(self, value: str, rng: random.Random) -> str:
        """A phrase of the same shape as a value or name, some of its words replaced by arbitrary ones."""
        words = value.split(" ")
        kept = [
            word if len(word) < 4 or rng.random() < 0.25 or not word.isalpha() else self.word(rng) for word in words
        ]
        if rng.random() < 0.1:
            kept.insert(rng.randint(min(1, len(kept) - 1), len(kept)), self.word(rng))
        return " ".join(kept)

    def thing(self, inventory: Inventory, rng: random.Random) -> tuple[str, str]:
        """(name, noun) of something made of arbitrary words: "the grey ledger", "Arbel's ledger", "ledger 12"."""
        noun = self.word(rng)
        if rng.random() < 0.2:
            noun = f"{self.word(rng)} {noun}"
        style = rng.random()
        if style < 0.3:
            return f"the {self.word(rng)} {noun}", noun
        if style < 0.5:
            return f"the {inventory.coined(rng)} {noun}", noun
        if style < 0.6:
            return f"{noun} {inventory.number(rng, 2, 999)}", noun
        if style < 0.68:
            return f"the {noun} {inventory.code(rng)}", noun
        if style < 0.76:
            return f"the {noun} of {inventory.coined(rng) if rng.random() < 0.5 else inventory.person(rng)}", noun
        if style < 0.84:
            return f"the {noun} {rng.choice(PREPOSITIONS)} the {self.word(rng)}", noun
        if style < 0.9:
            return f"the {self.word(rng)} {noun} at {inventory.site(rng)}", noun
        if style < 0.95:
            return f"the {noun}", noun
        return f"the {inventory.coined(rng)} {inventory.coined(rng)} {noun}", noun

    def babble(self, rng: random.Random) -> str:
        """A sentence of arbitrary words, or a real one with its words in another order."""
        if rng.random() < 0.5:
            words = self.prose.run(rng, 1)[0].rstrip(".!?").split()[:24]
            rng.shuffle(words)
        else:
            small = tuple(SMALL_WORDS)
            words = [rng.choice(small) if rng.random() < 0.4 else self.word(rng) for _ in range(rng.randint(4, 16))]
        text = " ".join(words)
        return text[0].upper() + text[1:] + "."

    def garble(self, question: str, rng: random.Random) -> str:
        """The question as people type it, now and then: a typo, words swapped or left out."""
        style = rng.random()
        if style > 0.1:
            return question
        words = question.split(" ")
        place = rng.randrange(len(words))
        plain = "{" not in words[place]
        if style < 0.04 and plain and len(words[place]) > 3:
            at = rng.randrange(len(words[place]) - 1)
            word = words[place]
            words[place] = rng.choice(
                (
                    word[:at] + word[at + 1 :],
                    word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                    word[:at] + word[at] + word[at:],
                )
            )
        elif style < 0.07 and place + 1 < len(words):
            words[place], words[place + 1] = words[place + 1].rstrip("?."), words[place]
        else:
            words = [word for word in words if word not in SMALL_WORDS or rng.random() < 0.4]
        return " ".join(words)

    def vary(self, template: str, rng: random.Random) -> str:
        """The same sentence or question with a word or two more, less or replaced."""
        if not self.chance(0.7, rng):
            return template
        varied = self._varied(template, rng)
        return template if normalised(varied) in held_exactly() else varied

    def _varied(self, template: str, rng: random.Random) -> str:
        words = template.split(" ")
        for _ in range(rng.choice((1, 1, 1, 2))):
            place = rng.randrange(len(words))
            if words[place] in SMALL_WORDS and rng.random() < 0.5:
                words.pop(place)
            elif "{" not in words[place] and rng.random() < 0.12:
                words[place] = self.word(rng) + ("?" if words[place].endswith("?") else "")
            else:
                words.insert(place, self.word(rng))
        return " ".join(words)

    def aside(self, sentence: str, named: bool, rng: random.Random) -> str:
        """The sentence with an opening or ending that adds nothing.

        `named`: it begins with a name, so keep the capital.
        """
        style = rng.random()
        if style < 0.12:
            opening = rng.choice(OPENINGS).replace("{w}", self.word(rng))
            return opening + (sentence if named else sentence[0].lower() + sentence[1:])
        if style < 0.22 and sentence.endswith("."):
            if style < 0.17:
                words = self.prose.run(rng, 1)[0].rstrip(".!?").split()
                start = rng.randrange(max(1, len(words) - 6))
                clause = " ".join(words[start : start + rng.randint(3, 9)]).strip(",;:")
                return f"{sentence[:-1]}{rng.choice(JOINTS)} {clause}."
            return sentence[:-1] + rng.choice(ENDINGS).replace("{w}", self.word(rng)) + "."
        return sentence

    def polite(self, question: str, rng: random.Random) -> str:
        """The question with a lead or trail that adds nothing."""
        style = rng.random()
        if style < 0.08:
            return rng.choice(LEADS).replace("{w}", self.word(rng)) + question
        if style < 0.13:
            return question + rng.choice(TRAILS).replace("{w}", self.word(rng))
        if style < 0.18:
            return question.rstrip("?.")
        if style < 0.23:
            return question[0].lower() + question[1:]
        if style < 0.24:
            return question.upper()
        return question
