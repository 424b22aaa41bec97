"""Relations of the synthetic corpus: what documents say, and how people ask about it.

One block per relation, separated by blank lines. The first line is `name | kinds of entity | kind of value`; then

    n   nouns for the attribute, interchangeable between document and question
    +   sentence of a document        ?   question              (training)
    ++  sentence of a document        ??  question              (held out: evaluation only)
    >   description of the entity by its value, for two-hop questions
    <   description of the value by its entity, for two-hop questions; the value is then an entity itself

`{e}` is the entity, `{v}` the value, `{k}` the noun for the entity's kind ("depot").
"""

from __future__ import annotations

from dataclasses import dataclass

RELATIONS_TEXT = """
manager | site unit team | person
n manager; head; supervisor
+ {v} runs {e}.
+ {e} is run by {v}.
+ {v} is in charge of {e}.
+ {e} is managed by {v}, who took over last spring.
+ Since the reorganisation, {v} has managed {e}.
+ The person in charge of {e} is {v}.
+ {e} answers to {v}.
+ Day-to-day decisions at {e} are made by {v}.
? Who runs {e}?
? Who is in charge of {e}?
? Who manages {e}?
? Who is the head of {e}?
? Name the manager of {e}.
? Who heads {e}?
? Which person is responsible for {e}?
++ {v} is responsible for everything that happens at {e}.
++ {v} leads {e} and reports to the board.
?? Who leads {e}?
?? Who has charge of {e}?
< the manager of {e}
< the person who runs {e}
< the head of {e}
> the {k} run by {v}
> the {k} that {v} manages

extension | person unit team site | number4
n extension; phone extension; extension number; internal number
+ {e} can be reached on extension {v}.
+ To reach {e}, dial {v}.
+ The extension of {e} is {v}.
+ {e} answers the phone on {v}.
+ Calls for {e} go to extension {v}.
+ Ring {v} for {e}.
? What is the extension of {e}?
? Which extension reaches {e}?
? On which extension can {e} be reached?
? What number do I dial for {e}?
? What is the phone extension of {e}?
? How do I reach {e} by phone?
++ Anyone who needs {e} should call extension {v}.
++ {e} has the extension {v}.
?? Which extension belongs to {e}?
?? What extension should I call for {e}?

opens | site unit room | clock
n opening time; opening hour
+ {e} opens at {v}.
+ The doors of {e} open at {v}.
+ At {v} every weekday {e} opens to the public.
+ {e} opens its doors at {v} each morning.
+ Staff unlock {e} at {v}.
+ Work at {e} starts at {v}.
? When does {e} open?
? At what time does {e} open?
? What time does {e} open?
? What is the opening time of {e}?
? When can I go to {e} in the morning?
++ Visitors are let into {e} from {v}.
++ {e} is open from {v}.
?? From what time is {e} open?
?? What time do the doors of {e} open?

closes | site unit room | clock
n closing time; closing hour
+ {e} closes at {v}.
+ {e} shuts at {v}.
+ Nobody may stay in {e} after {v}.
+ The doors of {e} are locked at {v}.
+ The last shift leaves {e} at {v}.
? When does {e} close?
? At what time does {e} close?
? What time is {e} locked?
? What is the closing time of {e}?
? Until when is {e} open?
++ {e} stays open until {v}.
?? What time does {e} shut?
?? How late is {e} open?

colour | product machine vehicle room site | colour
n colour; paint colour; finish
+ {e} is painted {v}.
+ {e} is {v}.
+ The colour of {e} is {v}.
+ {e} comes in {v} only.
+ {e} was repainted {v} last year.
+ Everyone knows {e} by its {v} paint.
? What colour is {e}?
? What is the colour of {e}?
? Which colour was {e} painted?
? In what colour does {e} come?
? How is {e} painted?
++ You will recognise {e} by its {v} colour.
++ {e} has a {v} finish.
?? Which colour is {e}?
?? What colour does {e} have?

capacity_people | room site vehicle event | people
n capacity; seating capacity
+ {e} holds {v}.
+ {e} has room for {v}.
+ Up to {v} fit into {e}.
+ {e} can take {v} at a time.
+ No more than {v} are allowed in {e}.
+ {e} seats {v}.
? How many people fit into {e}?
? What is the capacity of {e}?
? How many people can {e} hold?
? How many people does {e} seat?
? How many may be in {e} at once?
++ There is space for {v} in {e}.
++ {e} is licensed for {v}.
?? How many people is there space for in {e}?
?? For how many people does {e} have room?

stores | site room | goods
n main stock; stock
+ {e} stores {v}.
+ {v} are kept at {e}.
+ {e} is where {v} are stored.
+ All our {v} are held at {e}.
+ You will find {v} in {e}.
+ {e} holds the stock of {v}.
? What does {e} store?
? What is stored at {e}?
? What is kept at {e}?
? Which goods are held at {e}?
++ {e} keeps {v} on its shelves.
++ The shelves of {e} are full of {v}.
?? Which goods does {e} keep?
?? What goods are kept at {e}?
> the {k} that stores {v}
> the {k} where {v} are kept
> the {k} that holds {v}

employees | site team unit company | people
n staff; headcount; number of employees
+ {e} employs {v}.
+ {v} work at {e}.
+ {e} has a staff of {v}.
+ The headcount of {e} is {v}.
+ {e} gives work to {v}.
? How many people work at {e}?
? How many people does {e} employ?
? What is the headcount of {e}?
? How large is the staff of {e}?
++ There are {v} on the payroll of {e}.
?? How many employees does {e} have?
?? How many people are on the payroll of {e}?

built | site machine vehicle room | year
n year of construction; construction year
+ {e} was built in {v}.
+ {e} dates from {v}.
+ Built in {v}, {e} is still in use.
+ {e} went into service in {v}.
+ Construction of {e} was finished in {v}.
? When was {e} built?
? In which year was {e} built?
? What year does {e} date from?
? How old is {e}: which year was it built?
++ {e} was completed in {v}.
++ {e} has stood since {v}.
?? In what year was {e} completed?
?? What year was {e} built?

located_town | site company event | town
n town; location
+ {e} is in {v}.
+ {e} stands on the edge of {v}.
+ You will find {e} in {v}.
+ {e} is located in {v}, close to the station.
+ The home of {e} is {v}.
+ {e} moved to {v} some years ago.
? Where is {e}?
? In which town is {e}?
? Where is {e} located?
? What town is {e} in?
? Which town is home to {e}?
++ {e} lies in {v}.
++ {e} is based in {v}.
?? In what town is {e} based?
?? Where does {e} lie?
> the {k} in {v}
> the {k} located in {v}

located_room | machine person unit product | place
n place; location
+ {e} is in {v}.
+ {e} is found in {v}.
+ {e} sits in {v}.
+ Look for {e} in {v}.
+ {e} moved to {v} in the autumn.
+ In {v} you will find {e}.
? Where is {e}?
? Where can I find {e}?
? Where is {e} found?
? In which place is {e}?
? What is the location of {e}?
++ The place of {e} is {v}.
++ {e} can be found in {v}.
?? Where should I look for {e}?
?? Where can {e} be found?
> the {k} in {v}

price | product event vehicle | money
n price; list price; cost
+ {e} costs {v}.
+ The price of {e} is {v}.
+ {e} sells for {v}.
+ We sell {e} at {v}.
+ Customers pay {v} for {e}.
+ {e} is listed at {v}.
? How much does {e} cost?
? What does {e} cost?
? What is the price of {e}?
? How much is {e}?
? What do customers pay for {e}?
? For how much does {e} sell?
++ {e} is priced at {v}.
++ A charge of {v} is made for {e}.
?? How much do you pay for {e}?
?? At what price is {e} sold?

weight | product machine vehicle | mass
n weight; mass
+ {e} weighs {v}.
+ The weight of {e} is {v}.
+ With its packing, {e} weighs {v}.
+ {e} has a mass of {v}.
+ It takes two people to lift {e}, which weighs {v}.
? How much does {e} weigh?
? What is the weight of {e}?
? How heavy is {e}?
? What does {e} weigh?
++ {e} tips the scales at {v}.
++ On the scales {e} comes to {v}.
?? How many kilograms does {e} weigh?
?? What weight does {e} have?

length | product machine vehicle room site | length
n length; width; height
+ {e} is {v} long.
+ {e} measures {v} from end to end.
+ From front to back {e} is {v}.
+ The length of {e} is {v}.
? How long is {e}?
? What is the length of {e}?
? How long is {e} from end to end?
++ {e} has a length of {v}.
?? What length does {e} have?
?? How long does {e} measure?

material | product machine room site | material
n material
+ {e} is made of {v}.
+ {e} is built from {v}.
+ The maker uses {v} for {e}.
+ {v} is the material of {e}.
+ The body of {e} is {v}.
? What is {e} made of?
? Which material is {e} made of?
? What is the material of {e}?
? What is {e} built from?
? Which material is used for {e}?
++ {e} consists of {v}.
++ {e} is made out of {v}.
?? From which material is {e} made?
?? What material does {e} consist of?

supplier | product machine goodsent site | company
n supplier; vendor
+ {e} is supplied by {v}.
+ {v} supplies {e}.
+ We buy {e} from {v}.
+ The supplier of {e} is {v}.
+ {e} comes from {v}.
+ {v} delivers {e} to us.
? Who supplies {e}?
? Which company supplies {e}?
? From whom do we buy {e}?
? Who is the supplier of {e}?
? Where does {e} come from?
? Which company delivers {e}?
++ {v} is our source for {e}.
++ Orders for {e} go to {v}.
?? From which company do we get {e}?
?? Which company provides {e}?
< the supplier of {e}
< the company that supplies {e}
> the {k} supplied by {v}

maker | product machine vehicle | company
n maker; manufacturer
+ {e} is made by {v}.
+ {v} makes {e}.
+ {v} built {e}.
+ The maker of {e} is {v}.
+ {e} was manufactured by {v}.
? Who makes {e}?
? Who built {e}?
? Which company makes {e}?
? Who is the manufacturer of {e}?
++ {e} is a product of {v}.
?? Which company manufactures {e}?
?? Whose product is {e}?
< the maker of {e}
< the company that makes {e}

warranty | product machine vehicle | months
n warranty; guarantee; warranty period
+ {e} has a warranty of {v}.
+ The warranty on {e} lasts {v}.
+ {e} is guaranteed for {v}.
+ For {v} we repair {e} free of charge.
+ The guarantee for {e} runs for {v}.
? How long is the warranty on {e}?
? For how long is {e} guaranteed?
? What is the warranty of {e}?
? How long does the guarantee for {e} last?
++ {e} is covered by a guarantee of {v}.
++ {e} is under warranty for {v}.
?? How long is {e} under warranty?
?? How many months is {e} guaranteed?

returns | product goodsent | days
n return period; refund period; return window
+ Customers have {v} to return {e}.
+ {e} may be returned within {v}.
+ {e} can be sent back for {v} after the purchase.
+ A refund for {e} is given within {v}.
+ We take {e} back for {v}.
+ The return period for {e} is {v}.
? How many days do customers have to return {e}?
? Within how many days may {e} be returned?
? How long can {e} be sent back?
? What is the return period for {e}?
? How many days does a customer have to bring back {e}?
? For how long do we take {e} back?
++ Anyone who bought {e} can hand it back within {v}.
++ Buyers of {e} get their money back within {v}.
?? How many days do buyers have to return {e}?
?? How long do we accept returns of {e}?

serial | product machine vehicle | code
n serial number; serial; inventory number
+ {e} has the serial number {v}.
+ The serial number of {e} is {v}.
+ {e} carries the serial number {v}.
+ On the plate of {e} you read {v}.
+ {e} is registered as {v}.
+ {v} is stamped on {e}.
? What is the serial number of {e}?
? Which serial number does {e} have?
? Under which number is {e} registered?
? What is stamped on {e}?
? Which number does {e} carry?
++ {e} is listed under the serial number {v}.
++ {e} bears the number {v}.
?? Which serial number does {e} bear?
?? What serial number is {e} listed under?

power | product machine vehicle | power
n power; rated power; power draw
+ {e} draws {v}.
+ {e} has a power of {v}.
+ The power of {e} is {v}.
+ At full load {e} takes {v}.
+ {e} is rated at {v}.
? How much power does {e} draw?
? What is the power of {e}?
? What is {e} rated at?
? How much does {e} draw at full load?
++ {e} needs {v} of power.
?? What power does {e} need?
?? How much power is needed by {e}?

temperature | product machine room site | temperature
n temperature; operating temperature; maximum temperature
+ {e} is kept at {v}.
+ {e} runs at {v}.
+ The temperature of {e} must not exceed {v}.
+ {e} is set to {v}.
+ We keep {e} at {v} all year.
? At what temperature is {e} kept?
? What is the temperature of {e}?
? How hot may {e} get?
? To what temperature is {e} set?
? What temperature must {e} not exceed?
++ {e} is held at a temperature of {v}.
?? What temperature is {e} held at?
?? At which temperature does {e} run?

speed | machine vehicle | speed
n speed; top speed; speed limit
+ {e} runs at {v}.
+ {e} must not go faster than {v}.
+ The speed of {e} is {v}.
+ {e} reaches {v}.
+ {e} is limited to {v}.
? How fast does {e} run?
? What is the speed of {e}?
? How fast may {e} go?
? What is the speed limit of {e}?
? What speed does {e} reach?
++ {e} travels at no more than {v}.
?? What is the highest speed of {e}?
?? How fast can {e} go?

road_speed | site | speed
n speed limit
+ The speed limit at {e} is {v}.
+ Inside {e} nobody drives faster than {v}.
+ Trucks at {e} keep to {v}.
? What is the speed limit at {e}?
? How fast may one drive at {e}?
? What speed do trucks at {e} keep to?
++ Drivers at {e} are limited to {v}.
?? Which speed limit applies at {e}?

operator | machine vehicle | person
n operator
+ {e} is operated by {v}.
+ {v} operates {e}.
+ Only {v} may use {e}.
+ {v} works at {e}.
+ {e} is in the hands of {v}.
? Who operates {e}?
? Who works at {e}?
? Who may use {e}?
? Which person operates {e}?
++ The controls of {e} are left to {v}.
?? Who is at the controls of {e}?
?? Who uses {e}?
< the operator of {e}
< the person who operates {e}
> the {k} that {v} operates

driver | vehicle | person
n driver
+ {v} drives {e}.
+ {e} is driven by {v}.
+ The driver of {e} is {v}.
+ {v} has been at the wheel of {e} for years.
? Who drives {e}?
? Who is the driver of {e}?
? Who is at the wheel of {e}?
++ Behind the wheel of {e} sits {v}.
?? Who sits behind the wheel of {e}?
< the driver of {e}

service | machine vehicle product | interval
n service interval; maintenance interval
+ {e} is serviced every {v}.
+ Every {v} {e} must be serviced.
+ The service interval of {e} is {v}.
+ {e} needs maintenance every {v}.
+ A technician looks after {e} every {v}.
? How often is {e} serviced?
? How often must {e} be serviced?
? What is the service interval of {e}?
? How often does {e} need maintenance?
++ {e} is inspected once every {v}.
++ Once every {v} {e} is overhauled.
?? How often is {e} overhauled?
?? How often do we inspect {e}?

tool | machine product vehicle | tool
n tool
+ To open {e} you need {v}.
+ {e} is opened with {v}.
+ Use {v} on {e}.
+ {e} is adjusted with {v}.
+ For work on {e}, take {v}.
? What do you need to open {e}?
? Which tool is used on {e}?
? With which tool is {e} adjusted?
? What is {e} opened with?
? Which tool do I take for work on {e}?
++ The right tool for {e} is {v}.
++ Repairs on {e} call for {v}.
?? Which tool does one need for {e}?
?? What is the right tool for {e}?

deadline | policy event | date
n deadline; due date; closing date
+ {e} is due on {v}.
+ The deadline for {e} is {v}.
+ {e} must be handed in by {v}.
+ {e} has to be finished by {v}.
+ Nothing for {e} is accepted after {v}.
? When is {e} due?
? What is the deadline for {e}?
? By when must {e} be handed in?
? By what date does {e} have to be finished?
++ {e} must be complete by {v}.
++ The last day for {e} is {v}.
?? What is the last day for {e}?
?? On what date is {e} due?

approver | policy | person
n approver
+ {e} is approved by {v}.
+ {v} approves {e}.
+ {e} must be signed by {v}.
+ {v} signs off {e}.
+ {e} goes to {v} for approval.
+ Questions about {e} go to {v}.
? Who approves {e}?
? Who signs off {e}?
? Who must sign {e}?
? To whom does {e} go for approval?
? Who answers questions about {e}?
++ {v} has the final word on {e}.
?? Who has the final word on {e}?
?? Whose approval does {e} need?
< the person who approves {e}

form | policy | code
n form; form number
+ For {e}, use form {v}.
+ {e} needs form {v}.
+ Fill in form {v} for {e}.
+ The form for {e} is {v}.
? Which form is used for {e}?
? Which form does {e} need?
? What form do I fill in for {e}?
++ {e} is requested with form {v}.
?? With which form is {e} requested?

limit | policy unit team | money
n limit; spending limit; budget
+ {e} is limited to {v}.
+ The limit for {e} is {v}.
+ Up to {v} may be spent on {e}.
+ {e} must not cost more than {v}.
+ {e} has a budget of {v}.
? What is the limit for {e}?
? How much may be spent on {e}?
? What is the budget of {e}?
? How much money does {e} have?
++ No more than {v} is granted for {e}.
++ {e} is allowed to spend {v}.
?? How much is granted for {e}?
?? How much is {e} allowed to spend?

notice | policy | days
n notice period; notice
+ {e} needs {v} notice.
+ Announce {e} {v} ahead.
+ {e} must be requested {v} in advance.
+ The notice period for {e} is {v}.
+ {e} takes effect after {v}.
+ {e} is settled within {v}.
? How much notice does {e} need?
? How many days in advance must {e} be requested?
? What is the notice period for {e}?
? After how many days does {e} take effect?
? Within how many days is {e} settled?
++ {e} is dealt with within {v}.
?? How many days ahead must {e} be announced?
?? Within what time is {e} dealt with?

frequency | policy event unit team | weekday
n day; meeting day
+ {e} takes place every {v}.
+ {e} meets every {v}.
+ {e} happens on {v}.
+ {v} is the day of {e}.
? On which day does {e} take place?
? When does {e} meet?
? Which day is {e}?
? On what day does {e} happen?
++ {e} is held each {v}.
?? Which day of the week is {e} held?

event_date | event policy | date
n date; starting date
+ {e} takes place on {v}.
+ {e} is held on {v}.
+ {e} begins on {v}.
+ The date of {e} is {v}.
+ On {v} we hold {e}.
? When does {e} take place?
? When is {e}?
? On which date is {e} held?
? When does {e} begin?
? What is the date of {e}?
++ {e} starts on {v}.
++ {e} has been set for {v}.
?? On what date does {e} start?
?? For which date has {e} been set?

organiser | event policy | person
n organiser; contact
+ {e} is organised by {v}.
+ {v} organises {e}.
+ {v} looks after {e}.
+ Ask {v} about {e}.
+ {v} is the contact for {e}.
? Who organises {e}?
? Who looks after {e}?
? Whom do I ask about {e}?
? Who is the contact for {e}?
++ {e} is in the care of {v}.
++ {v} takes care of {e}.
?? Who takes care of {e}?
?? In whose care is {e}?
< the organiser of {e}

venue | event team unit | place
n venue; meeting place
+ {e} is held in {v}.
+ {e} takes place in {v}.
+ {e} meets in {v}.
+ {v} is the venue of {e}.
? Where is {e} held?
? Where does {e} take place?
? Where does {e} meet?
? What is the venue of {e}?
++ People gather in {v} for {e}.
?? Where do people gather for {e}?

job | person | job
n job; job title; position; role
+ {e} works as {v}.
+ {e} is our {v}.
+ {e} was hired as {v}.
+ The job of {e} is {v}.
+ {e} became {v} two years ago.
? What does {e} work as?
? What is the job of {e}?
? As what was {e} hired?
? What is the position of {e}?
? What is the job title of {e}?
++ {e} holds the position of {v}.
++ {e} is employed as {v}.
?? What position does {e} hold?
?? As what is {e} employed?
> the {v}

works_at | person | site
n workplace; site
+ {e} works at {v}.
+ {e} is based at {v}.
+ {e} can be found at {v}.
+ {v} is the workplace of {e}.
+ {e} moved to {v} in June.
? Where does {e} work?
? Where is {e} based?
? At which site does {e} work?
? What is the workplace of {e}?
++ {e} belongs to the staff of {v}.
?? To the staff of which site does {e} belong?
?? At which place is {e} employed?
< the place where {e} works
< the site where {e} works

joined | person company team | year
n starting year; year of joining
+ {e} joined us in {v}.
+ {e} has been with us since {v}.
+ {e} started in {v}.
+ In {v}, {e} came on board.
? When did {e} join?
? In which year did {e} start?
? Since when has {e} been with us?
? What year did {e} join us?
++ {e} first came to us in {v}.
?? In what year did {e} first come to us?

deputy | person unit team site | person
n deputy; stand-in; assistant
+ {v} stands in for {e}.
+ The deputy of {e} is {v}.
+ When {e} is away, ask {v}.
+ {v} is deputy to {e}.
+ {v} assists {e}.
? Who stands in for {e}?
? Who is the deputy of {e}?
? Whom do I ask when {e} is away?
? Who assists {e}?
++ {v} fills in during any absence of {e}.
?? Who fills in for {e}?
< the deputy of {e}

trains | person | skill
n subject; speciality
+ {e} teaches {v}.
+ {e} gives the course on {v}.
+ {e} is an expert in {v}.
+ {e} knows all about {v}.
? What does {e} teach?
? What is {e} an expert in?
? Which course does {e} give?
? What does {e} know all about?
++ {e} specialises in {v}.
?? What does {e} specialise in?
> the person who teaches {v}
> the expert in {v}

key | room site machine vehicle | person
n key holder; keeper
+ {v} has the key to {e}.
+ The key to {e} is with {v}.
+ Ask {v} for the key to {e}.
+ {v} keeps the key of {e}.
? Who has the key to {e}?
? Whom do I ask for the key to {e}?
? Who keeps the key of {e}?
? With whom is the key to {e}?
++ {v} holds the key to {e}.
?? Who holds the key to {e}?
< the person who has the key to {e}

floor | room unit team | floor
n floor
+ {e} is on the {v} floor.
+ You find {e} on the {v} floor.
+ Take the stairs to the {v} floor for {e}.
? On which floor is {e}?
? Which floor is {e} on?
? What floor do I go to for {e}?
++ {e} occupies part of the {v} floor.
?? Part of which floor does {e} occupy?

destination | vehicle | town
n destination
+ {e} goes to {v}.
+ {e} runs to {v} every day.
+ The destination of {e} is {v}.
+ {e} takes goods to {v}.
? Where does {e} go?
? What is the destination of {e}?
? To which town does {e} go?
++ {e} heads for {v}.
?? Which town does {e} head for?
> the {k} that goes to {v}
> the {k} to {v}

departs | vehicle event | clock
n departure time; starting time
+ {e} leaves at {v}.
+ {e} departs at {v}.
+ {e} starts at {v}.
+ At {v}, {e} sets off.
? When does {e} leave?
? At what time does {e} depart?
? When does {e} start?
? What is the departure time of {e}?
++ {e} gets going at {v}.
?? What time does {e} get going?

fuel | vehicle machine | fuel
n fuel
+ {e} runs on {v}.
+ {e} burns {v}.
+ Fill {e} with {v} only.
+ The fuel of {e} is {v}.
? What does {e} run on?
? What fuel does {e} use?
? What is {e} filled with?
? What does {e} burn?
++ {e} is fuelled with {v}.
?? With what is {e} fuelled?

tank | vehicle machine site product | volume
n tank size; volume; tank capacity
+ The tank of {e} holds {v}.
+ {e} holds {v}.
+ {e} has a tank of {v}.
+ {v} go into {e}.
? How much does {e} hold?
? How much does the tank of {e} hold?
? What is the volume of {e}?
? How many litres go into {e}?
++ {e} takes {v} when it is full.
?? How many litres does {e} take?

distance | site company event | distance
n distance
+ {e} is {v} from the harbour.
+ From the office to {e} it is {v}.
+ The distance to {e} is {v}.
+ {e} lies {v} from the station.
? How far is {e} from the harbour?
? How far is it to {e}?
? What is the distance to {e}?
? How far away is {e}?
++ {e} is {v} away.
?? How far is it to get to {e}?

contract | company product goodsent | code
n contract number; contract; order number
+ The contract number of {e} is {v}.
+ {e} has the contract number {v}.
+ The contract for {e} is filed as {v}.
+ {e} is filed under {v}.
? What is the contract number of {e}?
? Under which number is {e} filed?
? What is the contract for {e} filed as?
++ Quote the contract number {v} when dealing with {e}.
?? Which contract number do I quote for {e}?

contact | company team unit site | person
n contact; contact person; representative
+ Our contact at {e} is {v}.
+ At {e}, ask for {v}.
+ {v} represents {e}.
+ {v} is the person to call at {e}.
? Who is our contact at {e}?
? Whom do I ask for at {e}?
? Who represents {e}?
? Who is the person to call at {e}?
++ {v} speaks for {e}.
?? Who speaks for {e}?
< our contact at {e}

discount | company product event | percent
n discount
+ {e} gives us a discount of {v}.
+ The discount for {e} is {v}.
+ We get {v} off at {e}.
+ A discount of {v} applies to {e}.
? What discount does {e} give?
? What is the discount for {e}?
? How much is the discount at {e}?
++ {e} comes with {v} off.
?? How much is taken off for {e}?

delivers | company site goodsent | weekday
n delivery day; delivery
+ {e} delivers every {v}.
+ Deliveries from {e} arrive on {v}.
+ {v} is the delivery day of {e}.
? On which day does {e} deliver?
? What is the delivery day of {e}?
? When do deliveries from {e} arrive?
++ The truck from {e} calls each {v}.
?? On what day does the truck from {e} call?

batch | goodsent product | quantity
n batch size; box size; minimum order
+ {e} come in boxes of {v}.
+ We order {e} in lots of {v}.
+ The batch size for {e} is {v}.
+ The minimum order for {e} is {v}.
? What is the batch size for {e}?
? In what lots do we order {e}?
? How many {e} are in a box?
? What is the minimum order for {e}?
++ A pack of {e} contains {v}.
?? How much does a pack of {e} contain?

stock | goodsent product | quantity
n stock level; number in stock
+ There are {v} of {e} in stock.
+ At the last count we had {v} of {e}.
+ The stock level of {e} is {v}.
+ {v} of {e} are left in the warehouse.
? How many of {e} are in stock?
? What is the stock level of {e}?
? How many of {e} are left?
++ The shelves still hold {v} of {e}.
?? How many of {e} do the shelves hold?

shelf | goodsent product | shelf
n shelf; bin
+ {e} are on {v}.
+ You find {e} on {v}.
+ {e} belong on {v}.
+ Put {e} back on {v}.
? On which shelf are {e}?
? Where do {e} belong?
? Where do I find {e}?
? Which shelf is for {e}?
++ The right shelf for {e} is {v}.
?? What is the right shelf for {e}?

pressure | machine | pressure
n pressure; operating pressure; maximum pressure
+ {e} works at {v}.
+ The pressure in {e} is {v}.
+ {e} must never exceed {v}.
+ The valve of {e} opens at {v}.
? At what pressure does {e} work?
? What is the pressure in {e}?
? What pressure must {e} never exceed?
? At what pressure does the valve of {e} open?
++ {e} operates at a pressure of {v}.
?? What pressure does {e} operate at?

alarm | machine room site policy | signal
n alarm signal; warning signal; signal
+ The alarm of {e} is {v}.
+ When something goes wrong with {e}, you will notice {v}.
+ {e} warns people with {v}.
+ {v} means trouble at {e}.
? What is the alarm of {e}?
? How does {e} warn people?
? What is the warning signal of {e}?
? What do you notice when something goes wrong with {e}?
++ In an emergency {e} gives {v}.
?? What does {e} give in an emergency?

cause | policy machine event | reason
n reason; cause
+ {e} was stopped because of {v}.
+ The reason for the change to {e} was {v}.
+ {v} led to a review of {e}.
+ Because of {v}, {e} was postponed.
? Why was {e} stopped?
? What was the reason for the change to {e}?
? What led to a review of {e}?
? Why was {e} postponed?
++ {e} was interrupted by {v}.
?? What interrupted {e}?

rule | policy site room unit team | rule
n rule; house rule; first rule
+ At {e}, everyone must {v}.
+ The first rule of {e} is to {v}.
+ Before anything else, people at {e} {v}.
+ {e} requires you to {v}.
? What must everyone do at {e}?
? What is the first rule of {e}?
? What does {e} require you to do?
++ Those who deal with {e} always {v}.
?? What do those who deal with {e} always do?

protect | machine room site | gear
n protective gear; safety gear
+ Wear {v} at {e}.
+ At {e} you must wear {v}.
+ Nobody goes near {e} without {v}.
+ {v} are compulsory at {e}.
? What must you wear at {e}?
? What protective gear is needed at {e}?
? What are people at {e} required to wear?
? Without what may nobody go near {e}?
++ Work at {e} demands {v}.
?? What gear does work at {e} demand?

shift_length | unit team machine | hours
n shift length; duration
+ A shift at {e} lasts {v}.
+ {e} works in shifts of {v}.
+ {e} runs for {v} without a break.
+ {e} takes {v}.
? How long is a shift at {e}?
? How long does {e} take?
? For how long does {e} run?
? How many hours does a shift at {e} last?
++ {e} goes on for {v}.
?? For how many hours does {e} go on?

founded | company site team event | person
n founder
+ {e} was founded by {v}.
+ {v} founded {e}.
+ {v} started {e} in a garage.
+ The founder of {e} is {v}.
? Who founded {e}?
? Who started {e}?
? Who is the founder of {e}?
? By whom was {e} founded?
++ {e} goes back to {v}.
?? To whom does {e} go back?
< the founder of {e}

sells | company site team | goods
n main product; product line
+ {e} sells {v}.
+ {e} is known for {v}.
+ {e} deals in {v}.
+ The main product of {e} is {v}.
? What does {e} sell?
? What is {e} known for?
? What does {e} deal in?
? What is the main product of {e}?
++ {e} trades in {v}.
?? What goods does {e} trade in?
> the {k} that sells {v}
> the {k} known for {v}

nickname | site machine vehicle team room | nick
n nickname; other name
+ Everyone calls {e} "{v}".
+ {e} is known as {v}.
+ The nickname of {e} is {v}.
+ Among the staff {e} goes by the name of {v}.
? What is {e} known as?
? What is the nickname of {e}?
? What does everyone call {e}?
? By what name does {e} go among the staff?
++ People refer to {e} as {v}.
?? How do people refer to {e}?

access | room site machine | badge
n badge; pass
+ To enter {e} you need {v}.
+ {e} opens only with {v}.
+ {v} gives access to {e}.
+ Nobody enters {e} without {v}.
? What do you need to enter {e}?
? Which badge gives access to {e}?
? What opens {e}?
++ Entry to {e} requires {v}.
?? What does entry to {e} require?

replace_part | machine vehicle product | part
n wear part; spare part
+ The part of {e} that fails first is {v}.
+ On {e}, replace {v} every year.
+ {e} usually needs a new {v}.
+ {v} is the weak point of {e}.
? Which part of {e} fails first?
? What must be replaced on {e}?
? What is the weak point of {e}?
? Which part does {e} usually need?
++ On {e} it is {v} that wears out.
?? What wears out on {e}?

record | machine site team event vehicle | count
n daily output; output
+ {e} makes {v} a day.
+ The output of {e} is {v} a day.
+ {e} handles {v} daily.
+ On a good day {e} manages {v}.
? How many does {e} make a day?
? What is the output of {e}?
? How much does {e} handle daily?
? How many does {e} manage on a good day?
++ {e} turns out {v} each day.
?? How many does {e} turn out each day?
"""


@dataclass(frozen=True)
class Relation:
    """One relation with its training and held-out wordings."""

    name: str
    kinds: tuple[str, ...]
    value: str
    nouns: tuple[str, ...]
    says: tuple[str, ...]
    asks: tuple[str, ...]
    held_says: tuple[str, ...]
    held_asks: tuple[str, ...]
    by_value: tuple[str, ...]
    by_entity: tuple[str, ...]


def parse_relations(text: str = RELATIONS_TEXT) -> tuple[Relation, ...]:
    """Parse the block format described at the top of this module."""
    relations = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.strip().splitlines()
        name, kinds, value = (part.strip() for part in head.split("|"))
        found: dict[str, list[str]] = {mark: [] for mark in ("n", "+", "?", "++", "??", ">", "<")}
        for line in lines:
            mark, _, rest = line.partition(" ")
            found[mark].append(rest.strip())
        nouns = tuple(noun.strip() for row in found["n"] for noun in row.split(";"))
        relations.append(
            Relation(
                name,
                tuple(kinds.split()),
                value,
                nouns,
                *(tuple(found[mark]) for mark in ("+", "?", "++", "??", ">", "<")),
            )
        )
    return tuple(relations)


RELATIONS = parse_relations()
