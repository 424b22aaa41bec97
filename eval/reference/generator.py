"""Synthetic multi-document questions in ordinary English, for training and for held-out evaluation.

A context is a set of chunks about invented people, places, machines, products and policies. Every fact is told in one
of many wordings, between sentences that say nothing of interest, and asked about in another wording. Two-hop questions
describe an entity through a fact ("the manager of the depot that stores copper wire"). Some questions have no answer in
the documents.

    for question in HeldOut(seed=1).questions(500, hops=1, chunks=10, chunk_tokens=100):
        question.chunks, question.question, question.answers, question.gold

The same seed gives the same questions. Names, values and wordings of `HeldOut` never occur in `TrainingContexts`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .filler import filler_sentence
from .frames import ASK_FRAMES, HELD_BY_ENTITY, HELD_BY_VALUE, SAY_FRAMES, WHO_FRAMES
from .inventory import Inventory, held_out_words
from .loose import LooseLanguage
from .prompt import NOT_IN_DOCUMENTS, SYSTEM_PROMPT
from .prose import Prose
from .relations import RELATIONS, Relation
from .wordings import Groups, noun_wordings, training_wordings

CHARACTERS_PER_TOKEN = 3.0  # of this corpus under the reference tokenizer; lengths are aimed at, not exact

# Relations of one group would make each other's questions ambiguous, so an entity gets at most one of each.
EXCLUSIVE = {
    name: group
    for group, names in {
        "where": ("located_room", "located_town", "venue", "shelf", "works_at", "floor"),
        "when": ("departs", "event_date", "deadline", "frequency", "delivers"),
        "duration": ("shift_length", "length"),
        "who": ("approver", "organiser"),
        "company": ("supplier", "maker"),
        "person": ("operator", "driver"),
        "money": ("limit", "price"),
        "why": ("cause",),
        "size": ("tank", "capacity_people"),
        "goods": ("stores", "sells"),
        "clock": ("opens", "departs"),
    }.items()
    for name in names
}

ENTITY_VALUES = {"person": "person", "company": "company", "site": "site"}
KINDS = [
    "person",
    "site",
    "product",
    "machine",
    "vehicle",
    "unit",
    "team",
    "room",
    "company",
    "policy",
    "event",
    "goodsent",
    "site",
    "product",
    "machine",
    "unit",
    "person",
    "policy",
]
SECTIONS = (
    [
        "Handbook",
        "Staff handbook",
        "Sites",
        "People",
        "Products",
        "Machines",
        "Policies",
        "Events",
        "Transport",
        "Customers",
        "Safety",
        "Contacts",
        "Overview",
        "Notes",
        "Annex",
        "General",
        "Operations",
        "Stock",
        "Offices",
        "Appendix",
        "Rules",
        "Archive",
        "Facts",
        "Directory",
        "Guide",
        "Frequently asked questions",
        "Equipment",
        "Suppliers",
        "Finance",
        "Introduction",
        "History",
        "Daily work",
        "Logistics",
        "Services",
    ],
    [
        "Company book",
        "Premises",
        "Colleagues",
        "Catalogue",
        "Machinery",
        "Regulations",
        "Calendar",
        "Partners",
        "Miscellany",
        "Reference",
    ],
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about the company handbook.",
    "Answer briefly.",
    "Use only the documents below.",
    "Answer with the exact words of the documents.",
    "You are an assistant for the staff. Keep your answers short.",
    "Read the documents and answer the question. Do not guess.",
    "Give the shortest possible answer.",
    "Answer from the context. Say when something is not there.",
    "You help customers of our shop. Be precise and polite.",
    "Answer the question from the documents.",
    "You are a search engine that answers with a phrase.",
)


@dataclass(frozen=True)
class Question:
    """A question with its documents, as text.

    Attributes
    ----------
    chunks : list of (heading, text)
        The documents in the order shown; a heading is a path such as "Handbook > Sites", or None.
    question : str
    answers : tuple of str
        Accepted answers, the canonical one first.
    gold : tuple of int
        Indices of the chunks that hold the answer, the deciding one last.
    hops : int
        1 or 2; 0 where the documents do not hold the answer.
    """

    chunks: list[tuple[str | None, str]]
    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    hops: int


@dataclass
class Entity:
    """Something facts are about: `surface` in a sentence, `noun` for its kind, `pronouns` (subject, object, own)."""

    kind: str
    surface: str
    noun: str
    pronouns: tuple[str, str, str]


@dataclass
class Fact:
    """`entity` stands in `relation` to `value`; without a relation, `noun`, or `say` and `asks`, hold the wording."""

    entity: Entity
    relation: Relation | None
    noun: str
    value: str
    target: Entity | None = None
    chunk: int = -1
    say: str = ""
    asks: tuple[str, ...] = ()


@dataclass
class Context:
    """Chunks with everything that can be asked about them."""

    chunks: list[tuple[str | None, str]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    quotes: list[tuple[int, str]] = field(default_factory=list)


_OWNED = re.compile(r"[Tt]he ([a-z ]+) of \{e\}")
_PLURALS = {" is ": " are ", " has ": " have ", " comes ": " come ", " sells ": " sell ", " consists ": " consist "}
_PLURAL = re.compile("|".join(_PLURALS))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def accepted_answers(value: str) -> tuple[str, ...]:
    """The value, and what a reasonable reader would also accept: without its article or unit."""
    accepted = [value]
    for article in ("the ", "a ", "an "):
        if value.startswith(article):
            accepted.append(value[len(article) :])
    first, _, rest = value.partition(" ")
    if rest and first.replace(",", "").replace(".", "").isdigit() and rest.split()[0].islower():
        accepted.append(first)
    return tuple(accepted)


def _draw(groups: Groups, rng: random.Random) -> str:
    """A wording of a group of wordings."""
    return rng.choice(rng.choice(groups) if len(groups) > 1 else groups[0])


class _Picker:
    """Draws from the inventory's word lists; in training half of the words are arbitrary ones of the same shape."""

    def __init__(self, inventory: Inventory, loose: LooseLanguage | None, rng: random.Random):
        self.lists, self.loose, self.rng = inventory.lists, loose, rng

    def __call__(self, kind: str) -> str:
        if self.loose and self.loose.chance(0.7, self.rng):
            return self.loose.like(self.rng.choice(self.lists[kind]), self.rng)
        return self.rng.choice(self.lists[kind])


class ContextMaker:
    """Builds contexts from one half of the inventory. Deterministic given the random generator it is handed.

    Parameters
    ----------
    inventory : Inventory
        Where names and values come from.
    prose : Prose, optional
        Real sentences between the facts, and arbitrary words (training only).
    held_out_wording : bool, optional
        Which half of the wordings to use; by default the inventory's. Only diagnostics mix them.

    Without prose, the training half is the plain one: the hand-written wordings of relations.py and frames.py. With it,
    the composed wordings of wordings.py join them, with arbitrary words, noise and names that differ in one word.
    """

    def __init__(self, inventory: Inventory, prose: Prose | None = None, held_out_wording: bool | None = None):
        self.inventory = inventory
        self.prose = prose
        self.half = inventory.half if held_out_wording is None else int(held_out_wording)
        self.loose = LooseLanguage(prose, inventory.pieces) if prose and not self.half else None
        self.by_kind: dict[str, list[Relation]] = {kind: [] for kind in set(KINDS)}
        for relation in RELATIONS:
            for kind in relation.kinds:
                self.by_kind[kind].append(relation)
        if self.loose:
            made = training_wordings()
            self.says: dict[str, Groups] = {name: wordings.says for name, wordings in made.items()}
            self.asks: dict[str, Groups] = {name: wordings.asks for name, wordings in made.items()}
            self.frames: tuple[Groups, ...] = noun_wordings()
            self.nouns = {name: wordings.nouns for name, wordings in made.items()}
            self.by_entity = {name: wordings.by_entity for name, wordings in made.items()}
            self.by_value = {name: wordings.by_value for name, wordings in made.items()}
            return
        half = self.half
        self.says = {r.name: (r.held_says if half else r.says,) for r in RELATIONS}
        self.asks = {r.name: (r.held_asks if half else r.asks,) for r in RELATIONS}
        self.frames = tuple((halves[half],) for halves in (SAY_FRAMES, ASK_FRAMES, SAY_FRAMES, WHO_FRAMES))
        self.nouns = {r.name: r.nouns for r in RELATIONS}
        self.by_entity = {r.name: HELD_BY_ENTITY.get(r.name, ()) if half else r.by_entity for r in RELATIONS}
        self.by_value = {r.name: HELD_BY_VALUE.get(r.name, ()) if half else r.by_value for r in RELATIONS}

    # Entities and facts

    def entity(self, kind: str, rng: random.Random) -> Entity:
        """A new entity of a kind."""
        inv, pick = self.inventory, _Picker(self.inventory, self.loose, rng)
        it = ("it", "it", "its")
        style = rng.random()
        if self.loose and kind != "person" and self.loose.chance(0.35, rng):
            surface, noun = self.loose.thing(inv, rng)
            return Entity(kind, surface, noun, ("they", "them", "their") if kind == "goodsent" else it)
        if kind == "person":
            return Entity(kind, inv.person(rng), "person", rng.choice((("she", "her", "her"), ("he", "him", "his"))))
        if kind == "goodsent":
            noun = pick("goods")
            surface = noun if style < 0.5 else f"{pick('colour' if style < 0.7 else 'material')} {noun}"
            return Entity(kind, surface, noun, ("they", "them", "their"))
        if kind == "company":
            return Entity(kind, inv.company(rng), "company", it)
        if kind == "room":
            return Entity(kind, inv.place(rng) if style < 0.6 else f"the {inv.coined(rng)} room", "room", it)
        if kind == "policy":
            noun = pick("policy_noun")
            surface = f"the {noun}"
            if style > 0.6:
                surface += f" of the {pick('unit_head')} {pick('unit_tail')}"
            return Entity(kind, surface, noun, it)
        if kind == "event":
            noun = pick("event_noun")
            head = inv.town(rng) if style < 0.5 else pick("month") if style < 0.75 else inv.coined(rng)
            return Entity(kind, f"the {head} {noun}", noun, it)
        if kind == "unit":
            if style < 0.4:
                noun = pick("shift")
                return Entity(kind, f"the {noun} at {inv.site(rng)}", noun, it)
            noun = pick("unit_tail")
            surface = f"the {pick('unit_head')} {noun}"
            if style > 0.8:
                surface += f" at {inv.site(rng)}" if style > 0.9 else f" in {inv.town(rng)}"
            return Entity(kind, surface, noun, it)
        if kind == "team":
            head = pick("unit_head") if style < 0.6 else inv.coined(rng)
            return Entity(kind, f"the {head} team", "team", it)
        if kind == "site":
            surface = inv.site(rng)
            return Entity(kind, surface, surface.split(maxsplit=2)[2], it)
        noun = pick(f"{kind}_noun")
        if style < 0.3:
            surface = f"the {inv.coined(rng)} {noun}"
        elif style < 0.45:
            surface = f"{noun} {inv.number(rng, 2, 60)}" if kind != "product" else f"the {noun} {inv.code(rng)}"
        elif style < 0.6:
            surface = f"the {pick('colour' if rng.random() < 0.5 else 'material')} {noun}"
        elif style < 0.75:
            surface = f"the {pick('side')} {noun}"
        elif style < 0.85:
            surface = f"the {noun} in {inv.place(rng)}"
        else:
            surface = f"the {noun}"
        return Entity(kind, surface, noun, it)

    def sibling(self, entity: Entity, rng: random.Random) -> Entity | None:
        """An entity of the same kind whose name differs in one word, so that only the whole name tells them apart."""
        words = entity.surface.split()
        places = [i for i, word in enumerate(words) if word not in ("the", "of", "at", "in", "and")]
        if len(places) < 2 or self.loose is None:
            return None
        place = rng.choice(places)
        old = words[place]
        if old.isdigit():
            words[place] = str(self.inventory.number(rng, 2, 999))
        elif old[0].isupper():
            words[place] = self.inventory.coined(rng)
        else:
            words[place] = self.loose.word(rng)
        noun = entity.noun
        if not entity.surface.startswith(noun) and place == len(words) - 1:
            noun = words[-1] if entity.kind not in ("person", "company", "room", "team") else noun
        return Entity(entity.kind, " ".join(words), noun if noun in " ".join(words) else entity.noun, entity.pronouns)

    def attribute(self, rng: random.Random) -> tuple[str, str]:
        """An attribute nobody wrote templates for, such as "reserve flow", and a value for it."""
        inv, pick = self.inventory, self.inventory.lists
        kind = rng.choice(("number", "number", "code", "name", "word"))
        noun = rng.choice(pick[f"attribute_{kind}"])
        if kind != "word" or rng.random() < 0.6:
            noun = f"{rng.choice(pick['adjective'])} {noun}"
        if self.loose and self.loose.chance(0.9, rng):
            noun = " ".join(self.loose.word(rng) if rng.random() < 0.6 else word for word in noun.split())
            if rng.random() < 0.15:
                noun = f"{noun} {self.loose.word(rng)}"
        if kind == "number":
            value = str(inv.number(rng, 2, rng.choice((99, 999, 9999))))
            if rng.random() < 0.5:
                loose_unit = self.loose is not None and self.loose.chance(0.5, rng)
                value += f" {self.loose.word(rng) if self.loose and loose_unit else rng.choice(pick['unit_number'])}"
        elif kind == "code":
            value = inv.code(rng) if rng.random() < 0.7 else inv.coined(rng)
        elif kind == "name":
            value = inv.person(rng) if rng.random() < 0.8 else inv.company(rng)
        else:
            value = rng.choice(pick["thing"] if rng.random() < 0.6 else pick["colour"])
            if self.loose and self.loose.chance(0.9, rng):
                value = self.loose.like(value, rng) if rng.random() < 0.5 else self.loose.phrase(rng)
        return noun, value

    def facts_about(
        self, entity: Entity, count: int, rng: random.Random, favoured: list[Relation], taken: set[tuple[str, str]]
    ) -> list[Fact]:
        """Up to `count` facts about one entity that do not make each other's questions ambiguous."""
        facts: list[Fact] = []
        used: set[str] = set()
        for _ in range(count * 3):
            if len(facts) == count:
                break
            if self.loose and self.loose.chance(0.4, rng):
                key, say, asks, value = self.loose.relation(self.inventory, rng)
                if key not in used:
                    used.add(key)
                    facts.append(Fact(entity, None, key, value, say=say, asks=asks))
                continue
            if rng.random() < 0.2:
                noun, value = self.attribute(rng)
                if noun not in used:
                    used.add(noun)
                    facts.append(Fact(entity, None, noun, value))
                continue
            options = [r for r in favoured if entity.kind in r.kinds] if rng.random() < 0.5 else []
            relation = rng.choice(options or self.by_kind[entity.kind])
            group = EXCLUSIVE.get(relation.name, relation.name)
            if group in used or relation.name in used:
                continue
            value = self.inventory.value(relation.value, rng)
            if self.loose and relation.value in self.inventory.lists and self.loose.chance(0.9, rng):
                value = self.loose.like(value, rng) if rng.random() < 0.6 else self.loose.phrase(rng)
            if (relation.name, value) in taken or value == entity.surface:
                continue
            taken.add((relation.name, value))
            used.update((group, relation.name))
            facts.append(Fact(entity, relation, rng.choice(self.nouns[relation.name]), value))
        return facts

    # Wording

    def statement(self, fact: Fact, rng: random.Random, pronoun: bool) -> str:
        """A sentence that tells the fact; with `pronoun`, the entity was just mentioned and is not named again."""
        template = fact.say
        if fact.relation is not None and rng.random() < 0.8:
            template = _draw(self.says[fact.relation.name], rng)
        if not template:
            person = self.loose is not None and fact.relation is not None and fact.relation.value == "person"
            template = _draw(self.frames[2 if person and rng.random() < 0.3 else 0], rng)
        entity = fact.entity
        if self.loose:
            template = self.loose.vary(template, rng)
        template = template.replace("{n}", fact.noun)
        named = (template.startswith("{v}") and not fact.value.startswith(("the ", "a ", "an "))) or (
            template.startswith("{e}") and not pronoun and not entity.surface.startswith("the ")
        )
        if pronoun:
            subject, obj, own = entity.pronouns
            described = entity.kind not in ("person", "goodsent", "company") and rng.random() < 0.4
            if described:
                subject = obj = f"the {entity.noun}"
            else:
                template = _OWNED.sub(rf"{own} \1", template, count=1)
            if template.startswith("{e}'s ") and not described:
                template = own + template[5:]
            elif template.startswith("{e}"):
                template = subject + template[3:]
            elif described or template[template.find("{e}") + 3 :][:1] in (".", ",", ";", ":"):
                template = template.replace("{e}", obj)
        if entity.kind == "person":
            template = template.replace(" its ", f" {entity.pronouns[2]} ")
        text = template.replace("{e}", entity.surface).replace("{v}", fact.value)
        if text.startswith("they "):
            text = _PLURAL.sub(lambda match: _PLURALS[match[0]], text, count=1)
        text = _capital(text).replace("..", ".")
        return self.loose.aside(text, named, rng) if self.loose else text

    def ask(self, fact: Fact, rng: random.Random, surface: str | None = None) -> str:
        """A question whose answer is the fact's value; `surface` replaces the entity's name in two-hop questions."""
        template = rng.choice(fact.asks) if fact.asks else ""
        if fact.relation is not None and rng.random() < 0.8:
            template = _draw(self.asks[fact.relation.name], rng)
        if not template:
            noun = fact.noun
            if fact.relation is not None and rng.random() < 0.5:
                noun = rng.choice(self.nouns[fact.relation.name])
            person = fact.relation is not None and fact.relation.value == "person"
            template = _draw(self.frames[3 if person and rng.random() < 0.7 else 1], rng)
            template = template.replace("{n}", noun)
        if self.loose:
            template = self.loose.garble(self.loose.vary(template, rng), rng)
        text = _capital(template.replace("{e}", surface or fact.entity.surface).replace("{k}", fact.entity.noun))
        return self.loose.polite(text, rng) if self.loose else text

    # Chunks

    def filler(self, rng: random.Random) -> tuple[list[str], bool]:
        """A few sentences without facts that are asked about, and whether they are real prose."""
        if self.prose and rng.random() < 0.35:
            return self.prose.run(rng, rng.randint(1, 3)), True
        return [self.filler_sentence(rng) for _ in range(rng.randint(1, 2))], False

    def filler_sentence(self, rng: random.Random) -> str:
        """One such sentence; in training often with arbitrary words, lest it be known as filler by heart."""
        if self.loose is None:
            return filler_sentence(self.inventory, rng)
        style = rng.random()
        if style < 0.2:
            return filler_sentence(self.inventory, rng)
        if style < 0.3 and self.loose.chance(1.0, rng):
            return self.loose.babble(rng)
        if style < 0.5:
            # What documents say of something else, in the wordings of facts that are asked about.
            relation = rng.choice(RELATIONS)
            told = _draw(self.says[relation.name], rng)
            value = self.loose.phrase(rng) if rng.random() < 0.5 else self.inventory.value(relation.value, rng)
            thing, _ = self.loose.thing(self.inventory, rng)
            thing = (
                f"{rng.choice(('another', 'every', 'no', 'any', 'some other', 'a former'))} {thing[4:]}"
                if (thing.startswith("the "))
                else f"the {self.loose.word(rng)} of the {self.loose.word(rng)}"
            )
            text = self.loose.vary(told, rng).replace("{e}", thing).replace("{v}", value)
            return _capital(text).replace("..", ".")
        if rng.random() < 0.4:
            words = self.loose.vary(filler_sentence(self.inventory, rng)[:-1], rng).split(" ")
            for _ in range(rng.randint(0, 3)):
                words[rng.randrange(len(words))] = self.loose.word(rng)
            return _capital(" ".join(words)) + "."
        # Something that looks like a fact, about nothing in particular.
        _, say, _, value = self.loose.relation(self.inventory, rng)
        thing = f"{rng.choice(('the', 'the', 'our', 'every', 'a', 'this'))} {self.loose.word(rng)}"
        if rng.random() < 0.4:
            thing += f" of the {rng.choice(self.inventory.lists['unit_head'])} {self.loose.word(rng)}"
        return _capital(say.replace("{e}", thing).replace("{v}", value)).replace("..", ".")

    def heading(self, entity: Entity | None, rng: random.Random) -> str | None:
        """A heading path, or None; often it names the entity."""
        if rng.random() < 0.2:
            return None
        sections = SECTIONS[self.half]
        path = [rng.choice(sections) for _ in range(rng.choice((0, 1, 1, 2)))]
        if entity is not None and rng.random() < 0.65:
            name = entity.surface.removeprefix("the ")
            path.append(_capital(name))
        return " > ".join(dict.fromkeys(path)) or None

    def chunk(
        self, index: int, groups: list[list[Fact]], tokens: int, context: Context, rng: random.Random
    ) -> tuple[str | None, str]:
        """One chunk of about `tokens` tokens telling the facts of each group (one entity a group)."""
        budget = tokens * CHARACTERS_PER_TOKEN
        main = groups[0][0].entity if groups else None
        heading = self.heading(main, rng)
        named = (
            main is not None and heading is not None and main.surface.removeprefix("the ").lower() in heading.lower()
        )
        style = rng.random()
        blocks: list[str] = []
        used = len(heading or "")
        for number, group in enumerate(groups):
            for fact in group:
                fact.chunk = index
            entity = group[0].entity
            if style < 0.16 and (named or number > 0) and len(group) > 1:
                if number > 0 or not named:
                    blocks.append(f"{_capital(entity.surface)}:")
                lines = []
                for fact in group:
                    if fact.say:
                        lines.append(self.statement(fact, rng, pronoun=False))
                        continue
                    line = f"{_capital(fact.noun)}: {fact.value}"
                    lines.append(f"| {_capital(fact.noun)} | {fact.value} |" if style < 0.05 else f"- {line}")
                blocks.append("\n".join(lines))
                continue
            known = named and number == 0
            sentences: list[str] = []
            position = 0
            while position < len(group):
                fact = group[position]
                sentence = self.statement(fact, rng, pronoun=known and rng.random() < 0.7)
                position += 1
                if position < len(group) and rng.random() < 0.2:
                    second = self.statement(group[position], rng, pronoun=True)
                    joint = rng.choice((", and ", "; ", ", while ", ", but "))
                    names = (group[position].value, entity.surface)
                    if not any(second.startswith(name) for name in names):
                        second = second[0].lower() + second[1:]
                    sentence = sentence[:-1] + joint + second
                    position += 1
                sentences.append(sentence)
                known = True
                if rng.random() < 0.25 and used + sum(map(len, sentences)) < budget * 0.7:
                    extra, real = self.filler(rng)
                    extra = extra[:1]
                    if real:
                        context.quotes.append((index, extra[0]))
                    sentences += extra
                    known = entity.kind != "person" and rng.random() < 0.5
            blocks.append(" ".join(sentences))
        used += sum(map(len, blocks))
        while used < budget - 40:
            extra, real = self.filler(rng)
            while extra and used + sum(map(len, extra)) > budget + 50:
                extra.pop()
            if not extra:
                break
            if real:
                context.quotes += [(index, sentence) for sentence in extra]
            if blocks and rng.random() < 0.45 and not blocks[-1].splitlines()[-1].startswith(("-", "|")):
                blocks[-1] = f"{blocks[-1]} {' '.join(extra)}"
            elif rng.random() < 0.5 and not (blocks and blocks[0].startswith(("-", "|"))) and (named or not blocks):
                blocks.insert(0, " ".join(extra))
            else:
                blocks.append(" ".join(extra))
            used += sum(map(len, extra)) + 1
        joiner = " " if rng.random() < 0.5 else "\n"
        text = blocks[0] if blocks else ""
        for before, after in zip(blocks, blocks[1:], strict=False):
            tabular = any(block.startswith(("-", "|")) or block.endswith(":") for block in (before, after))
            text += ("\n" if tabular else joiner) + after
        return heading, text

    def table(
        self, tokens: int, rng: random.Random, taken: set[tuple[str, str]], surfaces: set[str]
    ) -> list[list[Fact]]:
        """Facts for a table or list: several entities of one kind with the same attributes. Told by `tabular`."""
        kind = rng.choice(KINDS)
        relations: list[Relation] = []
        for relation in rng.sample(self.by_kind[kind], min(len(self.by_kind[kind]), rng.choice((1, 1, 2, 3)))):
            group = EXCLUSIVE.get(relation.name, relation.name)
            if group not in {EXCLUSIVE.get(other.name, other.name) for other in relations}:
                relations.append(relation)
        nouns = [rng.choice(self.nouns[relation.name]) for relation in relations]
        groups: list[list[Fact]] = []
        for _ in range(min(7, max(2, tokens // (12 * len(relations) + 10)))):
            entity = self.entity(kind, rng)
            lowered = entity.surface.lower()
            if any(lowered in other or other in lowered for other in surfaces):
                continue
            surfaces.add(lowered)
            facts = []
            for relation, noun in zip(relations, nouns, strict=True):
                value = self.inventory.value(relation.value, rng)
                if (relation.name, value) not in taken:
                    taken.add((relation.name, value))
                    facts.append(Fact(entity, relation, noun, value))
            if len(facts) == len(relations):
                groups.append(facts)
        return groups

    def tabular(self, index: int, groups: list[list[Fact]], rng: random.Random) -> tuple[str | None, str]:
        """A chunk that is a table or a list, one entity a line."""
        for group in groups:
            for fact in group:
                fact.chunk = index
        nouns = [_capital(fact.noun) for fact in groups[0]]
        names = [_capital(group[0].entity.surface.removeprefix("the ")) for group in groups]
        heading = " > ".join([*rng.sample(SECTIONS[self.half], rng.randint(0, 2)), nouns[0]])
        if len(nouns) == 1 and rng.random() < 0.6:
            mark = rng.choice(("- ", "* ", ""))
            joint = rng.choice((": ", " - ", ", "))
            lines = [f"{mark}{name}{joint}{group[0].value}" for name, group in zip(names, groups, strict=True)]
        else:
            head = rng.choice(("Name", _capital(groups[0][0].entity.kind), "Who or what", "Item"))
            lines = [f"| {head} | {' | '.join(nouns)} |", "|---" * (len(nouns) + 1) + "|"]
            lines += [
                f"| {name} | {' | '.join(fact.value for fact in group)} |"
                for name, group in zip(names, groups, strict=True)
            ]
        if rng.random() < 0.5:
            lines.insert(0, f"{filler_sentence(self.inventory, rng)}\n")
        return (heading if len(nouns) == 1 or rng.random() < 0.8 else None), "\n".join(lines)

    def context(self, chunk_tokens: list[int], rng: random.Random, fact_share: float = 1.0) -> Context:
        """A context of chunks of about the given lengths. `fact_share` scales how many facts a chunk holds."""
        context = Context()
        if self.loose:
            self.loose.level = rng.choice((0.0, 0.3, 0.6, 1.0, 1.0))
        pool = rng.sample(RELATIONS, rng.randint(4, 14))
        kinds = rng.sample(KINDS, rng.randint(2, 6)) if rng.random() < 0.5 else list(KINDS)
        taken: set[tuple[str, str]] = set()
        surfaces: set[str] = set()
        waiting: list[Entity] = []
        met: list[Entity] = []
        per_chunk: list[list[list[Fact]]] = []
        for tokens in chunk_tokens:
            if self.loose and tokens > 50 and rng.random() < 0.1:
                per_chunk.append(self.table(tokens, rng, taken, surfaces))
                continue
            capacity = max(1, round(tokens * fact_share * rng.uniform(0.5, 1.2) / 24))
            groups: list[list[Fact]] = []
            for _ in range(8):
                if capacity < 1:
                    break
                if waiting and rng.random() < 0.6:
                    entity = waiting.pop(rng.randrange(len(waiting)))
                else:
                    twin = self.sibling(rng.choice(met), rng) if self.loose and met and rng.random() < 0.25 else None
                    entity = twin or self.entity(rng.choice(kinds), rng)
                    lowered = entity.surface.lower()
                    if any(lowered in other or other in lowered for other in surfaces):
                        continue
                    surfaces.add(lowered)
                    met.append(entity)
                count = min(capacity, rng.choice((1, 1, 2, 2, 3, 4, 6)))
                facts = self.facts_about(entity, count, rng, pool, taken)
                if not facts:
                    continue
                for fact in facts:
                    kind = ENTITY_VALUES.get(fact.relation.value) if fact.relation else None
                    if kind and rng.random() < 0.35 and fact.value.lower() not in surfaces:
                        noun = (
                            "person" if kind == "person" else "company" if kind == "company" else fact.value.split()[-1]
                        )
                        pronouns = ("she", "her", "her") if kind == "person" else ("it", "it", "its")
                        fact.target = Entity(kind, fact.value, noun, pronouns)
                        surfaces.add(fact.value.lower())
                        waiting.append(fact.target)
                capacity -= len(facts)
                groups.append(facts)
            per_chunk.append(groups)
        rng.shuffle(per_chunk)
        for index, (groups, tokens) in enumerate(zip(per_chunk, chunk_tokens, strict=True)):
            same = len(groups) > 1 and len({(g[0].entity.kind, tuple(f.noun for f in g)) for g in groups}) == 1
            if same and all(fact.relation for fact in groups[0]):
                context.chunks.append(self.tabular(index, groups, rng))
            else:
                context.chunks.append(self.chunk(index, groups, tokens, context, rng))
            context.facts += [fact for group in groups for fact in group]
        return context

    # Questions

    def one_hop(self, fact: Fact, rng: random.Random) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        return self.ask(fact, rng), accepted_answers(fact.value), (fact.chunk,)

    def two_hop(self, context: Context, rng: random.Random) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...]]]:
        """Two-hop questions of a context, in random order."""
        bridges = list(context.facts)
        rng.shuffle(bridges)
        by_entity: dict[str, list[Fact]] = {}
        for fact in context.facts:
            by_entity.setdefault(fact.entity.surface, []).append(fact)
        for bridge in bridges:
            if bridge.relation is None:
                continue
            name = bridge.relation.name
            down, up = self.by_entity[name], self.by_value[name]
            follow = by_entity.get(bridge.value, []) if bridge.target is not None and down else []
            if follow:
                fact = rng.choice(follow)
                surface = rng.choice(down).replace("{e}", bridge.entity.surface)
            else:
                others = [fact for fact in by_entity[bridge.entity.surface] if fact is not bridge]
                same = [f for f in context.facts if f.relation is bridge.relation and f.value == bridge.value]
                if not up or not others or len(same) > 1:
                    continue
                fact = rng.choice(others)
                surface = rng.choice(up).replace("{k}", bridge.entity.noun).replace("{v}", bridge.value)
                surface = surface.replace("the a ", "the ").replace("the an ", "the ")
            yield self.ask(fact, rng, surface), accepted_answers(fact.value), (bridge.chunk, fact.chunk)

    def unanswerable(self, context: Context, rng: random.Random) -> str | None:
        """A question that sounds right for these documents but has no answer in them."""
        if not context.facts:
            return None
        model = rng.choice(context.facts)
        stranger = 0.35 if self.loose else 0.5
        if rng.random() < stranger:
            # Half of the strangers of training share part of their name with someone in the documents.
            twin = self.sibling(model.entity, rng) if self.loose and rng.random() < 0.5 else None
            entity = twin or self.entity(model.entity.kind, rng)
            lowered = entity.surface.lower()
            if any(lowered in f.entity.surface.lower() or f.entity.surface.lower() in lowered for f in context.facts):
                return None
            return self.ask(Fact(entity, model.relation, model.noun, "", asks=model.asks), rng)
        known = [f for f in context.facts if f.entity.surface == model.entity.surface]
        used = {f.noun for f in known} | {
            key for f in known if f.relation for key in (f.relation.name, EXCLUSIVE.get(f.relation.name, ""))
        }
        relation = rng.choice(self.by_kind[model.entity.kind])
        if relation.name in used or EXCLUSIVE.get(relation.name, "-") in used or used & set(self.nouns[relation.name]):
            return None
        return self.ask(Fact(model.entity, relation, rng.choice(self.nouns[relation.name]), ""), rng)


class HeldOut:
    """Held-out questions: names, values and wordings that never occur in training.

    Parameters
    ----------
    seed : int
        The same seed gives the same questions.
    held_out_names, held_out_wording : bool
        Set one to False to see which half of the difficulty is names and values, and which is wording. Held-out scores
        have both.
    """

    def __init__(self, seed: int, held_out_names: bool = True, held_out_wording: bool = True):
        self.seed = seed
        self.maker = ContextMaker(Inventory(held_out=held_out_names), held_out_wording=held_out_wording)

    def questions(self, count: int, hops: int = 1, chunks: int = 10, chunk_tokens: int = 100) -> list[Question]:
        """`count` questions, each with its own documents.

        Parameters
        ----------
        count : int
        hops : int
            1, 2, or 0 for questions without an answer in the documents.
        chunks : int
            Documents a question.
        chunk_tokens : int
            Length of a document in tokens of the reference tokenizer, approximately.
        """
        if hops not in (0, 1, 2):
            raise ValueError(f"hops must be 0, 1 or 2, not {hops}")
        rng = random.Random(f"held-out {self.seed} {hops} {chunks} {chunk_tokens}")
        made: list[Question] = []
        while len(made) < count:
            context = self.maker.context([chunk_tokens] * chunks, rng, fact_share=0.8)
            found: tuple[str, tuple[str, ...], tuple[int, ...]] | None
            if hops == 0:
                text = self.maker.unanswerable(context, rng)
                found = None if text is None else (text, (NOT_IN_DOCUMENTS,), ())
            elif hops == 1:
                found = self.maker.one_hop(rng.choice(context.facts), rng)
            else:
                found = next(self.maker.two_hop(context, rng), None)
            if found is not None:
                text, answers, gold = found
                made.append(Question(context.chunks, text, answers, gold, hops))
        return made


@dataclass
class Turn:
    """One question of a training conversation; `kind` is "fact", "two_hop", "none", "quote" or "blank"."""

    question: str
    answer: str
    kind: str


@dataclass
class TrainingContext:
    """A training conversation as text: the prefix before the chunks (possibly empty), the chunks, the turns."""

    system: str | None
    prefix: str
    chunks: list[tuple[str | None, str]]
    turns: list[Turn]


class TrainingContexts:
    """Endless training conversations from the training half.

    Parameters
    ----------
    prose : Prose
        Real sentences that surround the facts and are quoted.
    seed : int
    pieces : tuple of str
        Word pieces of the tokenizer, used in invented names so that every piece is copied now and then.
    """

    CONTINUE = (
        'Continue: "{}"',
        'Continue the quotation: "{}"',
        'How does this sentence go on: "{}"',
        'Finish the sentence that begins "{}"',
        'What follows after "{}"?',
    )
    BLANK = (
        'Fill in the blank: "{}"',
        'Which words are missing in "{}"?',
        'Complete: "{}"',
        'What is missing here: "{}"',
    )

    def __init__(self, prose: Prose, seed: int, pieces: tuple[str, ...] = ()):
        self.rng = random.Random(f"training {seed}")
        self.prose = prose
        lower = tuple(piece for piece in pieces if piece.islower())
        beginnings = tuple(piece for piece in pieces if piece[0].isupper())
        # Words of the prose and the tokenizer's own pieces in equal shares.
        held = held_out_words()
        words = tuple(word for word in prose.words if word not in held)
        lower = tuple(piece for piece in lower if piece not in held)
        vocabulary = words + lower * max(1, len(words) // max(1, len(lower)))
        self.maker = ContextMaker(Inventory(False, vocabulary, beginnings, lower), prose)

    def prefix(self) -> tuple[str | None, str]:
        """(system prompt or None, text before the first chunk): the product's prefix, others, fragments, or nothing."""
        from .prompt import prefix_text

        rng, style = self.rng, self.rng.random()
        if style < 0.35:
            return SYSTEM_PROMPT, prefix_text()
        if style < 0.5:
            system = rng.choice(SYSTEM_PROMPTS)
            if rng.random() < 0.4:
                system = f"{system} {rng.choice(SYSTEM_PROMPTS)}"
            elif rng.random() < 0.4:
                system = " ".join(self.prose.run(rng, rng.randint(1, 6)))
            return system, prefix_text(system)
        if style < 0.6:
            return None, prefix_text(None)
        if style < 0.7:
            return None, "Documents:\n\n"
        if style < 0.85:
            return None, ""
        return None, " ".join(self.prose.run(rng, rng.randint(1, 8))) + "\n\n"

    def quote(self, context: Context) -> Turn | None:
        """A quotation to continue, or to fill a gap in, from the real prose of the context."""
        rng = self.rng
        if not context.quotes:
            return None
        _, sentence = rng.choice(context.quotes)
        words = sentence.split()
        if len(words) < 9:
            return None
        if rng.random() < 0.5:
            cut = rng.randint(4, len(words) - 4)
            answer = " ".join(words[cut : cut + rng.randint(3, 10)])
            start = max(0, cut - rng.randint(4, 12))
            return Turn(rng.choice(self.CONTINUE).format(" ".join(words[start:cut])), answer, "quote")
        start = rng.randint(2, len(words) - 5)
        length = rng.choice((1, 1, 2, 3))
        gap = " ".join(words[max(0, start - 6) : start] + ["____"] + words[start + length : start + length + 6])
        return Turn(rng.choice(self.BLANK).format(gap), " ".join(words[start : start + length]).strip(",.;:"), "blank")

    def sample(
        self, chunk_tokens: list[int], turns: int, two_hop: float = 0.2, quotes: float = 0.15
    ) -> TrainingContext:
        """One conversation over chunks of about the given lengths, with at most `turns` questions."""
        rng = self.rng
        context = self.maker.context(chunk_tokens, rng, fact_share=rng.uniform(0.6, 1.3))
        made: list[Turn] = []
        facts = list(context.facts)
        rng.shuffle(facts)
        hops = self.maker.two_hop(context, rng)
        for _ in range(turns * 2):
            if len(made) >= turns:
                break
            style = rng.random()
            if style < 0.035:
                text = self.maker.unanswerable(context, rng)
                if text:
                    made.append(Turn(text, NOT_IN_DOCUMENTS, "none"))
            elif style < 0.035 + quotes:
                turn = self.quote(context)
                if turn:
                    made.append(turn)
            elif style < 0.035 + quotes + two_hop:
                found = next(hops, None)
                if found:
                    made.append(Turn(found[0], found[1][0], "two_hop"))
            elif facts:
                fact = facts.pop()
                text, answers, _ = self.maker.one_hop(fact, rng)
                made.append(Turn(text, answers[0], "fact"))
        system, prefix = self.prefix()
        return TrainingContext(system, prefix, context.chunks, made)
