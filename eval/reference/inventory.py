"""Names and values of the synthetic corpus, in two strictly disjoint halves: training and held out.

Word lists are written as `training words / held-out words`. Numbers are split by a rule, `held_out_number`, and
invented names by the syllables they are built from. A unit test asserts that the halves do not meet.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable


def _halves(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    train, held = text.split("/")
    return (
        tuple(" ".join(word.split()) for word in train.split(",") if word.strip()),
        tuple(" ".join(word.split()) for word in held.split(",") if word.strip()),
    )


def held_out_number(number: int) -> bool:
    """Numbers that only the held-out half may use as values.

    Below a hundred, numbers are like letters: both use them.
    """
    return number >= 100 and number % 13 == 5


def held_out_date(day: int, month: int) -> bool:
    """Days of the year that only the held-out half may use."""
    return (day * 12 + month) % 7 == 3


LISTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    key: _halves(text)
    for key, text in {
        "first": """Ada, Ben, Carla, Dmitri, Elena, Farid, Greta, Hugo, Ines, Jonas, Katya, Leon, Mira, Nils, Olga,
            Pavel,
            Quinn, Rosa, Stefan, Tara, Uwe, Vera, Walter, Xenia, Yusuf, Zoe, Amara, Bruno, Celia, Dario, Edith, Felix,
            Gwen, Hamid, Iris, Jakub, Klara, Lars, Maren, Nadia, Otto, Petra, Ravi, Sofia, Tomas, Ursula, Viktor,
            Wanda,
            Anna, Peter, Maria, John, Susan, David, Laura, Mark, Julia, Paul, Sarah, Tom, Emma, Jack, Lucy, Omar,
            Aisha,
            Kofi, Mei, Hiro, Priya, Arjun, Chen, Fatima, Diego, Lucia, Ivan, Anya, Sven, Freya, Liam, Nora, Abena,
            Tariq,
            Noor, Samir, Leila, Mateo, Camila, Andre, Chloe, Hana, Kenji, Yara, Zainab, Rafael, Bianca, Owen, Megan
            / Marta, Idris, Linnea, Casper, Dalia, Ewan, Fiona, Goran, Helga, Imani, Jarek, Keiko, Lorenzo, Mabel,
            Nikhil,
            Oona, Piotr, Ramona, Silas, Thea, Ulric, Valeria, Wim, Yolanda, Zdenek, Esther, Callum, Beatriz, Anton,
            Rufus""",
        "surname_real": """Miller, Weber, Novak, Rossi, Dubois, Larsen, Silva, Kowalski, Petrov, Tanaka, Okafor,
            Mensah,
            Haddad, Singh, Patel, Nguyen, Kim, Walker, Turner, Cooper, Baker, Fisher, Carter, Mason, Porter, Shepherd,
            Wright, Hughes, Morgan, Reid, Murray, Costa, Fernandez, Moreau, Lindgren, Virtanen, Horvath, Ionescu,
            Demir,
            Yilmaz, Hassan, Ali, Chowdhury, Sato, Park, Wong, Lim, Santos, Torres, Vargas, Keller, Brandt, Vogel,
            Sommer
            / Oduya, Castellan, Brennan, Almeida, Fontaine, Gustafsson, Hollis, Jansen, Kaplan, Lombardi, Marchetti,
            Nakamura,
            Okonkwo, Pritchard, Quigley, Rasmussen, Sandoval, Thornton, Ueda, Vasquez, Whitlock, Zielinski""",
        "syllable": """ba, bel, bor, bri, cal, cor, dal, dor, dun, el, fal, far, fen, gar, gol, gren, hal, har, hol,
            jor, kal,
            kel, kor, lam, lin, lor, mal, mar, mel, mor, nal, nor, ol, or, pal, pel, por, ral, ran, rin, sal, sel,
            sor, tal,
            tam, tel, tor, ul, val, ven, vor, wal, wen, yar, zan, zel, tri, sto, gra, plo, kri, dra, flo, sna, bru,
            cha, ster,
            ton, wick, ley, ford, man, sen, dis, mont, vik, ros, lek, ma, ne, ri, so, tu, la, ki, do, pe
            / bax, ced, dov, esk, fyn, gwel, hux, jev, kresh, lyd, mox, nym, oph, pyr, quil, rhos, syb, thax, ulm,
            vex, wym, yev,
            zub, drex, gly, phan, skov, tweb""",
        "place_head": """Stone, Ash, Oak, Mill, River, Black, White, Green, High, Low, North, South, Clear, Deep,
            Long, Fox, Hart,
            Crow, Raven, Swan, Thorn, Bramble, Elder, Maple, Cedar, Copper, Iron, Silver, Salt, Sand, Marsh, Moor,
            Wind, Storm,
            Sun, Moon, Star, Winter, Summer, Harvest, King, Queen, Bishop, Abbot, Monk, Miller, Tanner, Cooper,
            Shepherd, Wolf,
            Bear, Otter, Heron, Wren, Kings, Old, New, Cold, Dry, Red, Gold, Nether, Upper, East, West, Chester,
            Lang, Wood
            / Brack, Ember, Juniper, Falcon, Granite, Hazel, Kestrel, Linden, Pepper, Quarry, Rowan, Saffron,
            Tinder, Willow,
            Yarrow, Birch, Badger, Cinder, Dray, Flint""",
        "place_tail": """ford, ton, field, bridge, wick, stead, ham, bury, well, brook, dale, side, gate, worth,
            mouth, hill, cliff,
            port, haven, grove, moor, land, ridge, cross, ley, burn, fold / water, combe, shaw, holm, garth,
            minster, fell,
            hurst, thwaite""",
        "company_tail": """Metals, Supplies, Brothers, Trading, Works, Logistics, Tools, Instruments, Foods,
            Textiles, Chemicals,
            Glass, Timber, Paper, Energy, Motors, Systems, Partners, Industries, Shipping, and Sons, Electric, Machines
            / Ceramics, Foundry, Optics, Freight, Packaging, and Daughters, Hydraulics""",
        "colour": """red, blue, green, yellow, black, white, grey, brown, orange, purple, pink, silver, gold,
            turquoise, dark blue,
            light green, dark red, pale yellow, navy, beige, cream, olive, violet, bright orange, pale blue,
            dark green, light
            grey, deep purple, copper red, sky blue, grass green, charcoal, ivory, maroon, crimson, bronze, sand,
            rust, lime
            green, jet black, snow white, mustard yellow / teal, magenta, lavender, amber, indigo, salmon, scarlet,
            mint green,
            slate, ochre, burgundy, coral, khaki, lilac""",
        "material": """steel, oak, copper, brass, glass, leather, cotton, wool, plastic, rubber, aluminium,
            stainless steel, cast
            iron, pine, concrete, brick, marble, clay, paper, cardboard, nylon, silk, linen, tin, zinc, lead,
            bronze, maple wood,
            walnut, beech, plywood, stone, slate tiles, carbon fibre, hardened glass, sheet metal, recycled plastic,
            galvanised
            steel, soft rubber, felt, canvas, wax paper, sandstone, chrome, nickel, silver, gold
            / titanium, bamboo, porcelain, granite, cork, velvet, birch wood, ceramic, pewter, acrylic, mahogany,
            fibreglass,
            tungsten, hemp""",
        "goods": """apples, spare parts, copper wire, bicycles, light bulbs, wool blankets, paint, tyres,
            office chairs, winter coats,
            batteries, printing paper, machine oil, screws, wooden crates, glass bottles, medical masks, seeds,
            fertiliser, rice,
            flour, sugar, coffee beans, dried fruit, tea, salt, cheese, frozen fish, canned tomatoes, olive oil,
            garden tools,
            ladders, ropes, tents, sleeping bags, helmets, gloves, boots, cables, switches, fuses, lamps, mirrors,
            carpets,
            curtains, bed frames, mattresses, tables, bookshelves, filing cabinets, test samples, archive boxes,
            old maps, solar
            panels, water filters, pumps, gaskets, ball bearings, drill bits, saw blades, sheet metal, plywood,
            bricks, cement,
            roof tiles, window frames, door handles, locks, radios, keyboards, monitors, printers, phones, toys,
            board games,
            footballs, school books, pens, envelopes, stamps, soap, candles, towels, shirts, socks, hats
            / kettles, walnuts, copper pipes, umbrellas, thermometers, snow shovels, toner cartridges, violins,
            fire hoses,
            honey jars, circuit boards, fishing nets, hydraulic seals, roller skates, wheelbarrows, lampshades,
            oyster shells,
            typewriters, pillowcases, compasses, welding rods, sewing kits""",
        "tool": """a hammer, a torque wrench, a flat screwdriver, a crowbar, a hex key, a pair of pliers,
            a soft brush, a pipe wrench, a
            socket wrench, a drill, a hacksaw, a file, a chisel, a spirit level, a tape measure, a rubber mallet,
            a soldering iron,
            a heat gun, a bolt cutter, a bench vice, a long spanner, a small spanner, a brass key, a steel ruler,
            a magnet, a
            grease gun, a wire brush, a putty knife, a cordless drill, a star screwdriver, two clamps,
            a thin needle, a gear puller
            / an adjustable spanner, a feeler gauge, a strap wrench, an oil can, a hand plane, a caliper,
            a suction cup, an awl,
            a blowtorch, tweezers""",
        "job": """an accountant, a welder, a driver, a nurse, a librarian, a night guard, a carpenter,
            an electrician, a plumber, a
            lab technician, a sales manager, a chief engineer, a cook, a gardener, a teacher, a translator, a clerk,
            a cleaner,
            a software developer, a designer, a buyer, a planner, a painter, a mechanic, a pilot, a crane operator,
            a safety
            officer, a quality inspector, a store manager, a press officer, a trainee, a lawyer, a secretary,
            a receptionist,
            a data analyst, a project manager, a head baker, a senior chemist, a team leader, a training officer
            / a glassblower, an archivist, a payroll officer, a surveyor, a dispatcher, a locksmith, a tax adviser,
            an optician,
            a beekeeper, a bookbinder, a forklift driver, a toolmaker""",
        "skill": """first aid, bookkeeping, welding, public speaking, fire safety, contract law, statistics,
            photography, typing, project
            planning, cooking, crane operation, chemistry, glass cutting, data protection, soldering, negotiation,
            accounting,
            sewing, stock control, quality control, web design, technical drawing, customer service,
            lifting technique, driving
            in snow, tea tasting, metal casting, hand lettering, pump repair, machine safety, time management,
            Spanish, Italian,
            German, Japanese, Arabic, French / calligraphy, beekeeping, wood turning, sign language, Portuguese,
            map reading,
            cable splicing, pottery, tax law, Korean, knife sharpening""",
        "fuel": """diesel, petrol, electricity, natural gas, hydrogen, coal, wood pellets, kerosene, biogas, steam,
            rapeseed oil,
            heating oil, propane, ethanol, compressed air, waste oil, solar power, batteries
            / methanol, charcoal, peat, cooking oil, liquid gas""",
        "signal": """a red light, a long whistle, three short beeps, a flashing lamp, a bell, a siren, a low hum,
            a blue flag, a burning
            smell, a loud click, a green arrow, two long rings, a yellow lamp, a voice message, a rattling noise,
            a text message,
            a spinning light, a buzzer, a horn, a steady tone / a foghorn, four short whistles, a white flare,
            a gong, a violet
            lamp, a rising tone""",
        "reason": """heavy rain, a broken pump, a strike, high prices, a lack of staff, a power cut, a flood,
            late deliveries, an oil leak,
            a fire next door, missing permits, a software error, bad weather, a cracked pipe, new safety rules,
            low demand, a
            failed inspection, a wrong label, rust, mould, a stolen key, a blocked drain, road works, an audit,
            noise complaints,
            a faulty sensor, a shortage of steel, a burst tyre / a landslide, a gas leak, a customs dispute,
            worn bearings, frost
            damage, a wasp nest, a printing error, salt corrosion""",
        "rule": """wash their hands, sign the register, switch off their phones, wear a name tag,
            report to the front desk, keep the doors
            shut, lock the cabinets, turn off the lights, check the pressure, read the manual,
            ask before taking photographs, call
            the office, leave bags in the hall, wipe the table, empty the bins, write down the time, test the alarm,
            count the
            boxes, keep to the left, speak quietly, take off their shoes, close the valve, show a pass,
            wait for the signal
            / rinse the filter, ring the bell twice, tie back long hair, update the log, cover the sample,
            return the key by noon,
            stand behind the line, weigh each parcel""",
        "gear": """safety goggles, steel boots, a helmet, ear plugs, rubber gloves, a yellow vest, a face shield,
            a dust mask, a hair net,
            a lab coat, leather gloves, a harness, knee pads, a life jacket, hard hats, an apron, white overalls,
            cotton gloves,
            safety shoes, ear defenders / anti-static shoes, a welding mask, a respirator, wrist guards,
            a reflective jacket,
            chain-mail gloves, shoe covers""",
        "badge": """a blue badge, a red badge, a visitor pass, a key card, a day ticket, a staff card, a brass key,
            a green wristband,
            a signed letter, a yellow token, a chip card, two keys, an escort, a permit, a fingerprint,
            a silver badge, a ticket
            / an orange badge, a white key card, a numbered disc, a violet pass, a grey token, a member card""",
        "part": """the drive belt, the filter, the main seal, the fuse, the left hinge, the gasket, the battery,
            the valve spring, the fan,
            the switch, the inlet pipe, the chain, the rear axle, the display, the bearing, the handle,
            the heating coil, the
            door lock, the pump head, the nozzle, the brake pad, the spark plug, the power cord, the oil ring,
            the clutch
            / the thermostat, the piston ring, the drain plug, the lid spring, the gearbox, the flywheel,
            the sensor cable,
            the cutting head, the float switch""",
        "nick": """the Beast, Big Bertha, the Cave, the Old Lady, the Fridge, the Castle, the Snail, the Rocket,
            the Greenhouse, the Nest,
            Blue Whale, Lucky Seven, the Bunker, the Lighthouse, the Tortoise, the Dragon, the Oven, the Aquarium,
            Little Sister,
            the Attic, the Elephant, the Ghost, the Jukebox, Thunder, Sleeping Beauty, the Hive, the Pit
            / the Walrus, Grandfather, the Cathedral, the Toaster, Grumpy, the Submarine, the Anvil, the Magpie,
            the Teapot""",
        "weekday": """Monday, Tuesday, Thursday, Friday, Saturday, Sunday, Monday morning, Tuesday afternoon,
            Thursday evening, Friday
            morning, first Monday, last Friday, second Tuesday, Sunday evening, Thursday morning,
            Saturday afternoon, third Thursday
            / Wednesday, Wednesday morning, second Wednesday, Wednesday evening, last Wednesday""",
        "month": """January, February, March, April, May, June, July, August, September, October, November,
            December /""",
        "floor": """first, second, third, fifth, sixth, ground, top, eighth, ninth, tenth, lowest, lower ground
            / fourth, seventh, eleventh, mezzanine""",
        "room_noun": """room, hall, workshop, laboratory, storeroom, cellar, attic, office, corridor, kitchen,
            canteen, archive, garage,
            courtyard, lobby, basement, library, studio, vault, wing / annexe, pantry, conservatory, loading bay,
            gallery,
            cloakroom""",
        "side": """north, south, east, west, upper, lower, old, new, main, rear, front, small, large, left, right,
            inner, outer, long
            / far, central, middle, narrow""",
        "site_noun": """depot, mill, warehouse, factory, plant, quarry, farm, station, workshop, yard, harbour,
            school, hospital, museum,
            hotel, bakery, brewery, office, laboratory, store, library, garage, branch, power station, clinic,
            shipyard, terminal,
            market, theatre, sawmill / foundry, observatory, cannery, smelter, nursery, archive, orchard, pottery,
            tannery""",
        "product_noun": """pump, lamp, heater, toaster, bicycle, drill, radio, printer, camera, chair, table, tent,
            backpack, scale, fan,
            clock, blender, mixer, oven, stove, mower, ladder, helmet, jacket, boot, watch, phone, speaker,
            keyboard, monitor, razor,
            iron, vacuum cleaner, coffee machine, water filter, torch, thermos, sleeping bag, guitar, stroller,
            freezer, desk, sofa
            / kettle, teapot, umbrella, microscope, accordion, humidifier, wheelbarrow, sewing machine,
            binoculars case, hammock,
            pressure cooker""",
        "machine_noun": """lathe, press, conveyor, boiler, crane, furnace, generator, compressor, mixer,
            bottling line, packing machine,
            saw, forklift, elevator, turbine, kiln, printer, scanner, freezer, filter unit, cooling tower, dryer,
            grinder, welding
            robot, label printer, server, pump, oven, shredder, drill press, paint booth, milling machine, loom,
            sorting machine
            / centrifuge, autoclave, plotter, band saw, extruder, hoist, dishwasher, distiller, laminator,
            spectrometer""",
        "vehicle_noun": """van, truck, ferry, bus, tram, train, tractor, barge, tanker, minibus, trailer, boat,
            ship, shuttle, lorry,
            locomotive, bulldozer, ambulance, pickup, coach / tugboat, excavator, snowplough, cable car, freighter,
            hovercraft""",
        "unit_head": """repair, sales, shipping, packing, cleaning, security, training, design, testing, research,
            complaints, returns,
            reception, purchasing, accounts, travel, legal, press, quality, printing, painting, welding, planning,
            maintenance,
            catering, export, import, customs, warranty, invoice, payroll, scheduling, drawing, tooling, assembly,
            inspection,
            polishing, sorting, stock, parts, visitor, housing, insurance / calibration, dispatch, billing,
            procurement,
            translation, fabrication, archive, refund, enquiry, sterilisation, engraving, recruitment""",
        "unit_tail": """desk, office, department, group, crew, section, counter, unit, service, squad / helpdesk,
            bureau, division""",
        "shift": """night shift, early shift, late shift, day shift, weekend shift, morning shift, evening shift,
            Sunday shift
            / holiday shift, afternoon shift, relief shift""",
        "policy_noun": """travel expense report, leave request, fire drill, annual audit, price review,
            safety inspection, tax return,
            overtime claim, parking permit, visitor registration, complaint procedure, refund request,
            invoice check, stock count,
            data backup, password reset, equipment loan, room booking, sick note, training request, supplier review,
            contract
            renewal, budget plan, quality report, price list update, cleaning schedule, holiday swap, salary review,
            home office
            request, insurance claim, key handover, road test, noise survey, energy report, delivery check,
            recipe change
            / badge replacement, relocation allowance, probation review, hazard report, purchase order,
            uniform order, tool return,
            warranty claim, shift swap, site survey""",
        "event_noun": """fair, summer party, open day, auction, conference, concert, exhibition, marathon, workshop,
            festival, dinner, market,
            race, lecture, job fair, training week, tournament, charity run, award night, boat race
            / regatta, harvest supper, symposium, science night, flea market, kite day, choir evening""",
        "adjective": """spare, reserve, main, daily, weekly, monthly, minimum, maximum, average, first, second,
            final, total, internal,
            external, official, temporary, emergency, standard, special, front, rear, upper, lower, left, right,
            old, new, primary,
            secondary, preferred, approved, previous, current, recommended, usual, winter, summer, night, spring,
            hidden, backup,
            regional, local, hourly, yearly, permitted, original, outer, inner, optional, required, safe, cold, hot,
            dry, wet
            / nominal, quarterly, tertiary, default, seasonal, interim, ideal, residual, ceremonial, autumn,
            lifetime""",
        "attribute_number": """level, score, limit, count, load, index, rate, depth, width, height, stroke, grade,
            target, quota, margin,
            tolerance, setting, rating, flow, charge, output, position, size, radius, allowance, dose, offset,
            ratio, angle
            / threshold, thickness, yield, clearance, torque, span, diameter, payload""",
        "attribute_code": """code, number, label, reference, identifier, mark, key, stamp, tag, model, version,
            file, ticket, permit
            / token, prefix, cipher, docket, shelfmark""",
        "attribute_name": """inspector, owner, sponsor, partner, contact, guardian, auditor, designer, engineer,
            buyer, planner, tester,
            adviser, reviewer, judge, trainer, host, guide, author / mentor, custodian, steward, chairperson,
            witness, curator""",
        "attribute_word": """colour, material, coating, symbol, theme, flavour, scent, pattern, drink, flower,
            animal, ingredient, language,
            instrument, surface, label colour, signal / emblem, mascot, dye, lining, spice, varnish""",
        "thing": """a lion, an eagle, a rose, a tulip, cinnamon, vanilla, pepper, lemon, mint, a dolphin, an owl,
            a fox, a bear, a star, a
            crown, an anchor, a key, a tree, a wheel, blue paint, red ink, varnish, beeswax, coffee, cocoa,
            apple juice, black tea,
            a trumpet, a drum, a flute, stripes, dots, squares, waves, diamonds, circles, honey, ginger, garlic,
            a horse, a swan
            / a heron, a thistle, nutmeg, a beetle, a lantern, chequers, cardamom, a cello, rhubarb, a stag,
            zigzags, linseed oil,
            a walrus, plum jam""",
        "unit_number": """kilograms, litres, metres, percent, units, points, degrees, volts, bars, hours, days,
            minutes, pieces, euros,
            millimetres, tonnes, pages, rows, boxes, seats /""",
    }.items()
}

# (onsets, vowels, codas) of languages that nobody speaks, for invented names.
LANGUAGES = tuple(
    tuple(tuple(part.split()) for part in text.split("/"))
    for text in (
        "b d f g h k l m n p r s t v w br dr gr kr st tr / a e i o u / n r s l m t k nd rt st",
        "ch j k m n r s sh t ts y z ky ry / a i u e o / n",
        "bl cl fl gl pl br cr gw ll rh th ph w y / y w a e o ae wy / dd n r th s ch ll",
        "z zh v vl vr kr pr dr sk st sm k m b d g / a o e i u ya yo / v n k sk tch r l m d",
        "k kh q x z b d h j m n r s t / a i u aa ai / b d f h l m n q r z sh",
        "h k l m n p w / a e i o u ai ao ou ei ui / k l",
        "c d f l m n p qu r s t v gi sc / a e i o ia io / l n r s",
        "sk fj hj kv n s t v b d g h l m r thr / o e a u i au ei aa / rk lf nd rd n r s st x g k ft",
        "t tl x qu c p m n y z ch tz / a e i o / tl c n l x z",
        "x q z j v w y ph ps gn kn wr sch pf / a e i o u y ee oo / x ck ff gg zz mp nk bs rv lt",
    )
)
NUMBER_WORDS = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "fifteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "ninety",
]
HELD_MINUTES = (10, 25, 50, 55)
TRAIN_MINUTES = (0, 5, 15, 20, 30, 35, 40, 45)


def held_out_words() -> frozenset[str]:
    """Lower-case single words that are names or values of the held-out half."""
    train = {word.lower() for halves in LISTS.values() for word in halves[0]}
    return frozenset(word.lower() for halves in LISTS.values() for word in halves[1]) - train


def spliced(words: tuple[str, ...], rng: random.Random) -> str:
    """The head of one word and the tail of another: it begins with pieces that few whole words begin with."""
    head, tail = rng.choice(words), rng.choice(words)
    return head[: rng.randint(1, 4)] + tail[rng.randint(1, 3) :][-6:]


class Inventory:
    """Draws names and values of one half.

    Parameters
    ----------
    held_out : bool
        False draws from the training half, True from the half reserved for evaluation.
    vocabulary : tuple of str
        Training only: words of real prose and word pieces, so that names are not limited to the invented syllables.
    beginnings : tuple of str
        Training only: capitalised word pieces, so that every token that can begin a name begins one now and then. A
        copied answer stands or falls with its first token.
    pieces : tuple of str
        Training only: word pieces in lower case.
    """

    def __init__(
        self,
        held_out: bool,
        vocabulary: tuple[str, ...] = (),
        beginnings: tuple[str, ...] = (),
        pieces: tuple[str, ...] = (),
    ):
        self.held_out = held_out
        self.half = 1 if held_out else 0
        self.vocabulary = () if held_out else vocabulary
        self.beginnings = () if held_out else beginnings
        self.pieces = () if held_out else pieces
        self.lists = {key: halves[self.half] or halves[0] for key, halves in LISTS.items()}
        syllables = "|".join(LISTS["syllable"][1])
        heads, tails = ("|".join(map(str.lower, LISTS[key][1])) for key in ("place_head", "place_tail"))
        self._held_names = re.compile(rf"(?:{syllables})[aeio]?(?:{syllables})|(?:{heads})(?:{tails})").fullmatch
        self._held_words = frozenset(
            word.lower() for key in ("first", "surname_real", "place_head", "place_tail") for word in LISTS[key][1]
        )
        self._values: dict[str, Callable[[random.Random], str]] = {
            "number4": lambda r: str(self.number(r, 1000, 9999)),
            "clock": self.clock,
            "people": self.people,
            "year": lambda r: str(self.number(r, 1870, 2026)),
            "money": self.money,
            "mass": lambda r: self.quantity(r, 2, 950, ("kilograms", "kg", "tonnes", "grams")),
            "length": lambda r: self.quantity(r, 2, 400, ("metres", "centimetres", "m", "millimetres", "feet")),
            "months": lambda r: self.quantity(r, 2, 60, ("months", "years", "weeks")),
            "days": lambda r: self.quantity(r, 2, 120, ("days", "days", "days", "working days", "weeks")),
            "code": self.code,
            "power": lambda r: self.quantity(r, 5, 2500, ("watts", "kilowatts", "kW", "W")),
            "temperature": lambda r: self.quantity(r, 2, 900, ("degrees", "degrees", "°C", "degrees Celsius")),
            "speed": lambda r: self.quantity(
                r, 4, 300, ("km/h", "kilometres per hour", "metres per minute", "miles per hour")
            ),
            "interval": lambda r: self.quantity(r, 2, 90, ("weeks", "days", "months", "hours")),
            "hours": lambda r: self.quantity(r, 2, 72, ("hours", "minutes", "hours", "days")),
            "volume": lambda r: self.quantity(r, 2, 5000, ("litres", "litres", "cubic metres", "gallons")),
            "distance": lambda r: self.quantity(r, 2, 400, ("kilometres", "km", "miles", "metres")),
            "pressure": lambda r: self.quantity(r, 2, 400, ("bar", "bar", "kilopascals", "psi")),
            "percent": lambda r: self.quantity(r, 2, 60, ("percent", "per cent")),
            "quantity": lambda r: str(self.number(r, 3, 999)),
            "count": lambda r: self.quantity(
                r, 20, 4000, ("boxes", "bottles", "parcels", "pieces", "visitors", "parts", "letters")
            ),
            "date": lambda r: self.date(r),
            "span": self.span,
            "address": self.address,
            "person": self.person,
            "town": self.town,
            "company": self.company,
            "site": self.site,
            "place": self.place,
            "shelf": self.shelf,
        }

    def value(self, kind: str, rng: random.Random) -> str:
        """A value of a kind named in relations.py, as it stands inside a sentence."""
        maker = self._values.get(kind)
        return maker(rng) if maker else rng.choice(self.lists[kind])

    def number(self, rng: random.Random, low: int, high: int) -> int:
        """A number of this half in [low, high]; the held-out half has none below a hundred and widens the range."""
        if self.held_out:
            low, high = max(low, 100), max(high, 999)
        while True:
            drawn = rng.randint(low, high)
            if held_out_number(drawn) == self.held_out:
                return drawn

    def quantity(self, rng: random.Random, low: int, high: int, units: tuple[str, ...]) -> str:
        """A number with a unit; in training also decimals, thousands, number words and arbitrary units."""
        top = high if rng.random() < 0.5 else max(low + 30, high // 8)
        if not self.held_out and rng.random() < 0.3:
            top = max(top, 999)  # no unit has a size of its own
        number, unit = str(self.number(rng, low, top)), rng.choice(units)
        if not self.held_out:
            style = rng.random()
            if style < 0.1:
                number = f"{self.number(rng, 0, 40)}.{self.number(rng, 1, 9)}"
            elif style < 0.22:
                number = f"{self.number(rng, 1, 400)},{rng.choice(('000', '500', '200', f'{rng.randint(0, 999):03d}'))}"
            elif style < 0.3:
                number = rng.choice(NUMBER_WORDS)
            elif style < 0.33:
                number = rng.choice(("at least ", "at most ", "about ", "up to ", "more than ")) + number
            if self.vocabulary and rng.random() < 0.15:
                unit = rng.choice(self.vocabulary)
        return f"{number} {unit}"

    def people(self, rng: random.Random) -> str:
        noun = "people" if self.held_out else rng.choice(("people", "people", "persons", "guests", "workers"))
        return f"{self.number(rng, 3, 900)} {noun}"

    def span(self, rng: random.Random) -> str:
        """A stretch of time: "from 9 to 20 November", "Monday to Friday"."""
        style = rng.random()
        if style < 0.4:
            first = self.number(rng, 1, 20)
            return f"from {first} to {self.number(rng, first + 1, 31)} {rng.choice(self.lists['month'])}"
        days = ("Monday", "Tuesday", "Thursday", "Friday", "Saturday", "Sunday")
        if style < 0.6:
            return f"{rng.choice(days)} {rng.choice(('to', 'and', 'or'))} {rng.choice(days)}"
        if style < 0.8:
            return f"from {self.clock(rng)} to {self.clock(rng)}"
        return (
            f"between {self.number(rng, 2, 20)} and {self.number(rng, 21, 90)} {rng.choice(('days', 'hours', 'weeks'))}"
        )

    def address(self, rng: random.Random) -> str:
        street = rng.choice(("Street", "Road", "Lane", "Square", "Quay", "Avenue", "Row", "Court"))
        return f"{self.number(rng, 1, 120)} {self.town(rng)} {street}"

    def clock(self, rng: random.Random) -> str:
        hour = rng.randint(1, 12)
        if self.held_out:
            return f"{rng.randint(5, 23)}:{rng.choice(HELD_MINUTES)}"
        style = rng.random()
        if style < 0.55:
            return f"{rng.randint(5, 23):{rng.choice(('02d', 'd'))}}:{rng.choice(TRAIN_MINUTES):02d}"
        if style < 0.75:
            return f"{hour}:{rng.choice(TRAIN_MINUTES):02d} {rng.choice(('am', 'pm', 'a.m.', 'p.m.'))}"
        if style < 0.9:
            return f"{hour} {rng.choice(('am', 'pm', 'a.m.', 'p.m.', 'in the morning', 'in the evening'))}"
        word = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"][
            hour - 1
        ]
        return f"{rng.choice(('half past ', 'a quarter past ', 'a quarter to ', ''))}{word}" + (
            "" if style < 0.97 else " o'clock"
        )

    def money(self, rng: random.Random) -> str:
        amount = self.number(rng, 2, rng.choice((60, 400, 9000)))
        text = f"{amount}" if amount < 1000 or rng.random() < 0.5 else f"{amount // 1000},{amount % 1000:03d}"
        if rng.random() < 0.2 and amount < 1000:
            text += (
                rng.choice((".25", ".65", ".10")) if self.held_out else rng.choice((".50", ".99", ".90", ".20", ".75"))
            )
        return rng.choice(("${}", "£{}", "€{}", "{} euros", "{} dollars", "{} pounds", "{} euros")).format(text)

    def code(self, rng: random.Random) -> str:
        letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
        number = self.number(rng, 10, rng.choice((99, 999, 9999)))
        if not self.held_out and rng.random() < 0.15:
            other = self.number(rng, 2, 999)
            return rng.choice((f"{letters}{number}{letters[::-1]}", f"{number}-{other}", f"{letters}/{number}/{other}"))
        if not self.held_out and rng.random() < 0.15:
            return f"{number}{rng.choice(('-', '/', ''))}{letters}"
        return f"{letters}{rng.choice(('-', '-', ' ', ''))}{number}"

    def date(self, rng: random.Random) -> str:
        while True:
            day, index = rng.randint(1, 28), rng.randrange(12)
            if held_out_date(day, index) == self.held_out:
                break
        month = self.lists["month"][index]
        style = rng.random()
        if self.held_out or style < 0.5:
            return f"{day} {month}"
        if style < 0.56:
            return f"{rng.choice(('Monday', 'Tuesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'))} {day} {month}"
        if style < 0.62:
            return f"{day} {month} {self.number(rng, 1980, 2035)}"
        if style < 0.75:
            return f"{month} {day}"
        suffix = "th" if 10 <= day <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        return f"the {day}{suffix} of {month}"

    def _clean(self, name: str) -> bool:
        """Whether a name is no held-out name; it may share syllables with them, as all names do."""
        lowered = name.lower()
        return lowered not in self._held_words and not self._held_names(lowered)

    def coined(self, rng: random.Random) -> str:
        """An invented capitalised word such as "Velmordis"; in training often made of word pieces or a real word."""
        if self.held_out:
            parts = [rng.choice(self.lists["syllable"]) for _ in range(2)]
            if rng.random() < 0.4:
                parts.insert(1, rng.choice("aeio"))
            return "".join(parts).capitalize()
        while True:
            style = rng.random()
            if style < 0.2:
                word = self._syllables(rng)
            elif self.vocabulary and style < 0.4:
                word = spliced(self.vocabulary, rng)
            elif self.beginnings and style < 0.65:
                more = self.pieces if rng.random() < 0.5 else self.vocabulary
                word = rng.choice(self.beginnings) + (rng.choice(more) if rng.random() < 0.75 else "")
            elif self.vocabulary and style < 0.8:
                word = rng.choice(self.vocabulary) + (rng.choice(self.vocabulary) if rng.random() < 0.6 else "")
            elif style < 0.9:
                word = "".join(
                    rng.choice("bcdfghjklmnprstvwz") + rng.choice(("a", "e", "i", "o", "u", "ou", "ai", "ee", "y"))
                    for _ in range(rng.randint(2, 3))
                ) + rng.choice(("", "n", "r", "s", "l", "x", "k", "th"))
            else:
                word = "".join(rng.choice(self.lists["syllable"]) for _ in range(rng.choice((2, 2, 2, 3))))
            if len(word) < 16 and self._clean(word):
                return word.capitalize()

    def _syllables(self, rng: random.Random) -> str:
        """A word of random sounds, in the manner of one of several languages that nobody speaks."""
        onsets, vowels, codas = rng.choice(LANGUAGES)
        word = "".join(
            rng.choice(onsets) + rng.choice(vowels) + (rng.choice(codas) if rng.random() < 0.6 else "")
            for _ in range(rng.choice((1, 2, 2, 2, 3)))
        )
        return word if len(word) > 2 else word + rng.choice(vowels) + rng.choice(codas)

    def town(self, rng: random.Random) -> str:
        """A town; in training also of two words or with a hyphen."""
        if not self.held_out and rng.random() < 0.12:
            first, second = self.coined(rng), self.coined(rng)
            return rng.choice(
                (
                    "Upper {}",
                    "Port {}",
                    "Saint {}",
                    "New {}",
                    "{} Bay",
                    "{} {}",
                    "{}-{}",
                    "{} on {}",
                    "Lower {}",
                    "El {}",
                )
            ).format(first, second)
        if rng.random() < 0.65:
            while True:
                if self.vocabulary and rng.random() < 0.4:
                    head = rng.choice(self.beginnings or self.vocabulary)
                    name = (
                        head.capitalize() + rng.choice(self.lists["place_tail"]) if len(head) < 9 else self.coined(rng)
                    )
                else:
                    name = rng.choice(self.lists["place_head"]) + rng.choice(self.lists["place_tail"])
                if self.held_out or self._clean(name):
                    return name
        return self.coined(rng)

    def person(self, rng: random.Random) -> str:
        style = rng.random()
        last = (
            rng.choice(self.lists["surname_real"])
            if style < 0.25
            else self.coined(rng)
            if style < 0.85
            else self.town(rng)
        )
        if self.held_out:
            return f"{rng.choice(self.lists['first'])} {last}"
        first = rng.choice(self.lists["first"]) if rng.random() < 0.2 else self.coined(rng)
        if rng.random() < 0.15:
            first = rng.choice(
                (
                    "Dr",
                    "Mr",
                    "Mrs",
                    "Ms",
                    "Captain",
                    "Professor",
                    f"{rng.choice('ABCDEFGHJKLMNPRSTW')}.",
                    first[0] + ".",
                )
            )
        style = rng.random()
        if style < 0.05:
            return f"{first} {rng.choice('ABCDEFGHJKLMNPRSTW')}. {last}"
        if style < 0.1:
            return f"{first} {rng.choice(('van', 'de', 'von', 'la', 'bin', 'al', 'dos', 'ter'))} {last}"
        if style < 0.14:
            return f"{first} {last}-{self.coined(rng)}"
        if style < 0.18:
            return f"{first} {self.coined(rng)} {last}"
        return f"{first} {last}"

    def company(self, rng: random.Random) -> str:
        head = self.coined(rng) if rng.random() < 0.6 else self.town(rng)
        if not self.held_out and self.vocabulary:
            style = rng.random()
            if style < 0.3:
                return f"{head} {rng.choice(self.vocabulary).capitalize()}"
            if style < 0.36:
                return f"{head} and {self.coined(rng)}"
            if style < 0.42:
                return f"{head} {rng.choice(self.vocabulary)} {rng.choice(('Ltd', 'GmbH', 'Inc', 'Group', 'Company'))}"
            if style < 0.46:
                return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 4)))
        return f"{head} {rng.choice(self.lists['company_tail'])}"

    def site(self, rng: random.Random) -> str:
        loose = self.vocabulary and rng.random() < 0.25
        return f"the {self.town(rng)} {rng.choice(self.vocabulary if loose else self.lists['site_noun'])}"

    def place(self, rng: random.Random) -> str:
        """Where something stands: "the north cellar", "room 214", "hall B", "the Velmor archive"."""
        style = rng.random()
        if self.vocabulary and rng.random() < 0.25:
            word, other = rng.choice(self.vocabulary), rng.choice(self.vocabulary)
            return rng.choice(
                (
                    f"the {word} {other}",
                    f"the {word}",
                    f"{word} {self.number(rng, 2, 900)}",
                    f"the {self.coined(rng)} {word}",
                )
            )
        if style < 0.3:
            return f"{rng.choice(('room', 'hall', 'building', 'bay', 'office'))} {self.number(rng, 2, 480)}"
        if style < 0.7:
            return f"the {rng.choice(self.lists['side'])} {rng.choice(self.lists['room_noun'])}"
        return f"the {self.town(rng)} {rng.choice(self.lists['room_noun'])}"

    def shelf(self, rng: random.Random) -> str:
        row = rng.choice("ABCDEFGH") + rng.choice(("", "-"))
        if self.vocabulary and rng.random() < 0.3:
            return f"{rng.choice(self.vocabulary)} {row}{self.number(rng, 2, 99)}"
        return f"{rng.choice(('shelf', 'rack', 'bin', 'aisle'))} {row}{self.number(rng, 2, 99)}"
