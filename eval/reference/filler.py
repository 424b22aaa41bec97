"""Sentences that carry no fact anyone asks about: the text around the facts.

Training and held-out halves are disjoint.
"""

from __future__ import annotations

import random

from .inventory import Inventory

TRAIN_FILLER = """
Please keep this page up to date and tell {unit} about any mistake.
The rules below apply to all staff, including part-time workers.
Nothing has changed here since the last edition of the handbook.
If in doubt, ask a colleague before you act.
A printed copy hangs next to the door of {place}.
This section was reviewed by {unit} and approved without changes.
Older versions of this text are kept in the archive.
Most visitors find it easier to come by bus.
In the winter months the paths are cleared before work begins.
Not every question can be answered in writing.
{goods} and {goods} are handled in the same way.
We thank everyone who helped to write this chapter.
The floor of {place} was cleaned and the walls were repaired.
New colleagues should read this part twice.
Experience shows that small problems are best reported at once.
There have been complaints about the noise, but they were settled.
A short introduction is given to every new member of {unit}.
The list is sorted by name and printed once a year.
Nobody is expected to know all of this by heart.
It is a good idea to bring {tool} along.
During the inspection {goods} were counted twice.
Lunch is served in the canteen, and tea is free for all.
Keep {tool} in its box when it is not in use.
The weather can be rough, so plan some extra time.
Some of the figures were rounded.
{unit} is happy to help with any problem.
The work is quiet in summer and busy before the holidays.
Reports are written in plain language and signed by two people.
Photographs of the older buildings can be seen in {place}.
For many years nothing was written down at all.
Please do not leave {goods} in {place} overnight.
The old arrangement was given up because of {reason}.
Details of the plan are discussed at the next meeting.
Accidents are rare, and most of them could have been avoided.
In case of {reason}, stay calm and follow the signs.
Wear {gear} whenever the sign at the door says so.
Thanks to a grant, {place} was repainted and got new lights.
The figures are checked by {unit} before they are printed.
Many suppliers were asked, and few replied in time.
This has worked well and will be continued.
All times are local times.
A second copy of each key is kept in a sealed envelope.
Anyone may suggest an improvement by writing to {unit}.
Small repairs are done by {unit}, larger ones by an outside firm.
The tour ends in {place}, where questions are welcome.
Boxes of {goods} must not be stacked higher than a person.
The machines are old but in good condition.
Trucks with {goods} use the side entrance.
Where two rules disagree, the stricter one counts.
It helps to write the number on the label at once.
They were bought second hand and have been reliable ever since.
In the beginning only {goods} were sold here.
Both the staff and the neighbours were pleased with the result.
What follows is a short summary of the most important points.
Records are destroyed after the legal period has ended.
"""

HELD_FILLER = """
Feedback on this chapter is always welcome.
Everyone is asked to treat the furniture in {place} with care.
The wording was simplified at the request of {unit}.
Earlier drafts of these pages mentioned {goods} as well.
When the lights in {place} flicker, tell {unit}.
On busy days a queue may form, so allow a little patience.
Several neighbours lent a hand when {place} had to be emptied.
Deliveries of {goods} are signed for at the entrance.
A map of the grounds is printed on the back cover.
Much of the equipment was donated by former members of staff.
Our predecessors did all of this by hand.
Spare labels lie in the drawer beside {tool}.
After {reason} the procedure was rewritten from scratch.
Guests are shown around by {unit} on request.
Whatever is borrowed should be brought back clean.
No exceptions have been made so far.
The glossary at the end explains the technical terms.
Old stock such as {goods} is given to charity.
Two trainees are drawing up a better overview.
Anything left in {place} over the weekend is thrown away.
"""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.strip().splitlines())


FILLER = (_lines(TRAIN_FILLER), _lines(HELD_FILLER))


def filler_sentence(inventory: Inventory, rng: random.Random) -> str:
    """One sentence without a fact, its slots filled from the inventory's half."""
    sentence = rng.choice(FILLER[inventory.half])
    while "{" in sentence:
        for slot, kind in (("{goods}", "goods"), ("{tool}", "tool"), ("{reason}", "reason"), ("{gear}", "gear")):
            if slot in sentence:
                sentence = sentence.replace(slot, rng.choice(inventory.lists[kind]), 1)
        if "{place}" in sentence:
            side, noun = rng.choice(inventory.lists["side"]), rng.choice(inventory.lists["room_noun"])
            sentence = sentence.replace("{place}", f"the {side} {noun}", 1)
        if "{unit}" in sentence:
            head, tail = rng.choice(inventory.lists["unit_head"]), rng.choice(inventory.lists["unit_tail"])
            sentence = sentence.replace("{unit}", f"the {head} {tail}", 1)
    return sentence[0].upper() + sentence[1:]
