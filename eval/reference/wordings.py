"""Training wordings by composition: verbs, nouns and alternations that expand to hundreds of wordings a relation.

One block per relation, separated by blank lines. The first line is its name in relations.py; then

    w   question words ("-" before one that takes no preposition: "when"), first those that go with every verb
    n   more nouns for the attribute
    ve  verbs whose subject is the value and whose object is the entity ("{v} runs {e}")
    ev  verbs whose subject is the entity and whose object is the value ("{e} weighs {v}"), `@` before a preposition
    ep  verbs done to the entity, with the value behind a preposition ("we keep {e} at {v}")
    +   sentence of a document, ?  question; (a|b|) is a choice, the full stop or question mark is added

Verbs are regular, or `base/past/participle`. The verb and noun frames below turn them into active, passive, cleft,
relative, fronted, modal and indirect forms. Whatever would contain a held-out wording, or have its words in another
order, is left out.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

from .frames import ASK_FRAMES, HELD_BY_ENTITY, HELD_BY_VALUE, SAY_FRAMES, WHO_FRAMES
from .relations import RELATIONS, Relation

Groups = tuple[tuple[str, ...], ...]

WORDINGS_TEXT = """
manager
w who; which person; which colleague; what man or woman
n boss; chief; leader; director; superintendent; person responsible; person in charge
ve run/ran/run; manage; head; lead/led/led; oversee/oversaw/overseen; direct; supervise; take/took/taken charge of
+ {v} (is|has been|was put|remains) (in charge of|responsible for|at the head of|at the top of) {e}
+ (Responsibility|Charge|Control|Leadership) of {e} (lies with|rests with|belongs to|passed to|was given to) {v}
+ {e} (reports|answers|belongs) to {v}
+ The board (made|named|appointed) {v} (head|manager|leader|chief) of {e}
+ {e} has {v} (as its (head|boss|leader|chief)|at its head|in charge)
+ (All|Most|The) decisions (at|about|for) {e} are (taken|made) by {v}
+ {v} reports to the board about everything in {e}
+ {v} has (taken over|been given) the (leadership|management|charge) of {e}
+ (Whatever|All that) happens (at|in) {e} is (decided|the business of|the responsibility of|watched over by) {v}
? Who (is|was put|has been) (in charge of|responsible for|at the head of|at the top of) {e}
? To whom does {e} (report|answer)
? Who (makes|takes) the decisions (at|for) {e}
? With whom does (responsibility|charge) of {e} lie
? Who has (taken over|been given) the (leadership|charge|management) of {e}
? Who is the (boss|chief|leader|top person) (at|of|in) {e}

extension
w which extension; what number; which number; what extension; which digits
n number; phone number; telephone extension; telephone number; line; internal line; internal phone
ep call @on; reach @on; phone @on; ring/rang/rung @on; telephone @on; contact @under
ev have/had/had; answer @on; pick up @on; take/took/taken calls @on; share; own
+ (Dial|Call|Ring|Phone|Try|Use) (extension|number|) {v} (for|if you need|to get|to speak to|and ask for) {e}
+ (Anyone|Whoever|People) (looking for|needing|wanting) {e} (should|can|may) (dial|ring|call|try) {v}
+ (Calls|Phone calls|Questions) (for|to) {e} (are put through to|go to|end up at) {v}
+ {v} is the (extension|number|line) (of|for|that belongs to|that reaches|to call for) {e}
+ (The telephone|The phone|The line) of {e} (is|has the number|has the extension) {v}
+ (Extension|Number|Line) {v} (belongs to|is|rings at|is that of|leads to) {e}
? (What|Which) (number|extension|line) (should|do|can|must) (I|we|one|you) (dial|ring|use|try) (for|to get|to reach)
  {e}
? (What|Which) (number|extension|line) (is|reaches|rings at|leads to) {e}
? To (what|which) (number|extension) (does|do) (a call|calls) for {e} go
? How (can|do|does) (I|we|one|somebody) (call|reach|phone|ring) {e}
? (What|Which) (extension|number) (must|does) a person who needs {e} (call|dial|have to call)
? {e} (belongs to|is on|has) which extension

opens
w -when; what time; what hour; -from when
n start of business; hour of opening; start of the day; first hour
ev open @at; start @at; begin/began/begun @at; open its doors @at; let/let/let people in @from; unlock its doors @at
ep open @at; unlock @at
+ (Visitors|Guests|People|Staff|Customers) (may|can) (enter|go into|come into|visit) {e} (from|after) {v}
+ (From|At) {v} (on|onwards) (visitors|people|guests) are (let|allowed|admitted) (in|inside) at {e}
+ {e} is (not|never) open before {v}
+ {e} (welcomes|receives|admits|lets in) (its first|) (visitors|guests|people|customers) (from|at) {v}
+ (The day|Work|Business) (at|in) {e} (begins|starts) at {v}
+ (The doors|The gates) (of|to|at) {e} (open|swing open|are opened|are unlocked) at {v}
+ (Opening time|Opening hour) (at|for) {e} is {v}
+ Before {v} {e} (stays|is) (shut|locked|closed)
? (When|At what time|From when) (may|can) (visitors|people|guests|I|we|customers) (enter|go into|come into|visit) {e}
? (When|From what time|At what hour) are (visitors|people|guests) (let|allowed) into {e}
? (When|What time) do (the gates|the doors) (at|to) {e} (open|get unlocked)
? How early (does|can) {e} (open|be open)
? (From when|From what hour|Since what time) is {e} (usually|normally) open
? Until when (does|is) {e} (stay|) (closed|locked|shut) in the morning

closes
w -when; what time; what hour; -until when
n end of business; end of the day; last hour; hour of closing
ev close @at; shut/shut/shut @at; end @at; finish @at; close its doors @at; stay open @till; empty @at
ep close @at; lock @at; shut/shut/shut @at
+ {e} (remains|is kept|is) open (until|till|up to) {v}
+ (Visitors|Guests|People|Everybody) (must|has to|should) (leave|be out of) {e} (by|before|at) {v}
+ (After|From) {v} {e} is (closed|shut|locked|empty|dark)
+ (The doors|The gates) (of|to|at) {e} (close|shut|are shut|are closed) at {v}
+ Nobody (may|can) (be in|enter|stay in|visit) {e} (after|later than) {v}
+ (You can be in|There is somebody at|People are at) {e} (as late as|until) {v}
? (Until|Till) (when|what time) (can|may) (I|we|people|visitors) (stay in|be in|visit) {e}
? How late (can|may) (I|we|one) (go to|visit|stay in|be in) {e}
? How late does {e} (stay|remain) open
? (When|At what time|What time) (is|does) {e} (shut|closed|locked|get shut|shut down)
? By (when|what time) must (everybody|people|visitors) (leave|be out of) {e}
? (What|Which) time (is|do) the doors (of|at) {e} (shut|closed|locked|close)
? After what time is {e} (dark|empty|closed|shut)

colour
w which colour; what colour; what shade; which paint
n shade; tone; coat of paint; tint; hue; color
ep paint @in; finish @in; coat @in; colour @in; make/made/made @in; deliver @in; produce @in
ev have/had/had the colour; wear/wore/worn; come/came/come @in; show; keep/kept/kept the colour
+ {e} (was|is|has been) (painted|repainted|coloured|coated|lacquered) {v}
+ (One|You|People) (can|will) (recognise|know|spot|find|tell) {e} by (its|the) {v} (paint|coat|surface|shade|finish)
+ {v} is the (colour|shade|paint|finish) (of|chosen for|used for|on) {e}
+ (We|They|The painters) (painted|made|coloured) {e} {v}
+ (Look for|Remember) {e}: it is {v}
+ The (walls|surface|outside|paint|finish) (of|on) {e} (is|are|was) {v}
+ A {v} (coat|finish|paint|colour) (covers|was chosen for|protects|is on) {e}
+ {e} is (all|entirely|mostly|bright) {v}
? (What|Which) (colour|paint|shade|finish) (is on|was chosen for|covers) {e}
? What (does|did) {e} look like: which colour
? In (which|what) (colour|shade|finish) (is|was) {e} (painted|made|delivered|coated)
? By (which|what) colour (can|will) (I|you|one) (recognise|know|spot) {e}
? {e} (is|was painted|has) (what|which) colour
? What colour would you say {e} is
? (Which|What) colour (can|does) one see on {e}

capacity_people
w how many people; how many; how many persons; how many guests; what number of people
n number of places; number of seats; number of people; maximum number of people; space
ev hold/held/held; seat; take/took/taken; accommodate; fit; have/had/had room @for; have/had/had space @for; admit
ep license @for; build/built/built @for; design @for; intend @for; approve @for; limit @to
+ {v} (can|may) (be in|use|fit into|sit in|go into|meet in) {e} (at once|at a time|together|)
+ (At most|Up to|As many as) {v} (fit into|may enter|can use|are allowed in|go into) {e}
+ There (is|is enough) (room|space) (in|inside|at) {e} for {v}
+ (The licence|The permit|The sign) (for|of|at) {e} (says|allows|is for) {v}
+ {e} is (full|crowded) with {v} (inside|in it)
+ {e} (offers|gives|has) (places|seats|space|room) for {v}
+ The (capacity|licence|size) of {e} is (enough for|put at) {v}
? How many (people|persons|guests) (can|may) (be in|use|fit into|go into|enter) {e} (at once|together|)
? For how many (people|persons|guests) is {e} (licensed|built|meant|allowed|made)
? How many (people|persons) is {e} (licensed|big enough|meant|intended) for
? (Room|Space) for how many people (is there|does one find) (in|at) {e}
? How many (seats|places) (are there|does one find) in {e}
? How (big|large) a (group|crowd) (fits into|can use) {e}

stores
w what; which goods; what goods; which things; what kind of goods
n goods; contents; goods in store; stored goods
ev store; hold/held/held; keep/kept/kept; house; contain; stock; be/was/been full @of; be/was/been stacked @with
+ {v} (are|were) (stored|kept|held|stacked|put|housed|locked away) (in|at|inside) {e}
+ (The shelves|The racks|The store|The floor) (of|in|at) {e} (hold|hold nothing but|carry|are stacked with|have) {v}
+ (You|One|We) (will|can) (find|get|see|fetch) {v} (in|at|inside) {e}
+ (All|Most of|The whole stock of) (our|the) {v} (is|are) (in|at) {e}
+ (We|The staff|They) (keep|store|put|hold|stack) {v} (in|at) {e}
+ {e} is (full of|where we keep|home to|the store for|used for) {v}
+ If you need {v}, (go to|try|look in|ask at) {e}
? (What|Which goods|What goods) (are|is) (stored|kept|held|stacked|housed|found|put) (in|inside) {e}
? (What|Which goods) (can|will|would) (I|you|one) (find|get|see) (in|at|on the shelves of) {e}
? What (is|are) {e} (full of|used for|stacked with|home to)
? What (do we|do the staff|do they) (keep|store|hold) (in|at) {e}
? What (is on|lies on|fills) the shelves (in|of|at) {e}

employees
w how many people; how many; how many employees; how many workers; what number of people
n workforce; number of workers; number of staff; payroll; size of the staff; number of people
ev employ; have/had/had; pay/paid/paid; count; give/gave/given work @to; have/had/had a payroll @of; engage
+ {v} (work|are employed|are paid|have a job|earn their living|are active) (at|by|in|for) {e}
+ (The payroll|The staff list|The workforce|The staff|The headcount) of {e} (has|counts|shows|lists|is|numbers) {v}
+ There are {v} (working|employed|at work) (at|in|for) {e}
+ (In all|Altogether|In total|Today), {v} work (at|for|in) {e}
+ {e} (has grown to|has a workforce of|is an employer of|has|counts) {v}
+ {v} are on the (staff|books|list) of {e}
? How many (people|employees|workers|persons) (work|are employed|have a job|are paid|are active) (at|by|in|for) {e}
? How many (people|employees|workers) are (there|) (at|on the staff of|on the books of) {e}
? How (large|big|strong) is (the staff|the workforce|the payroll) (of|at) {e}
? How many (employees|people) (does one find|are there|work) at {e}
? How many (workers|employees|people) (does|do) the payroll of {e} (list|count|have)

built
w -when; what year; which year
n year; year built; date of construction; year of completion; age
ep build/built/built @in; complete @in; finish @in; construct @in; put/put/put up @in; set/set/set up @in; erect @in
ev date @from; stand/stood/stood there @since; go/went/gone back @to; be/was/been in use @since; be/was/been ready @in
+ (The year|The date) (in which|when|that) {e} was (built|completed|made|put up) (is|was) {v}
+ {v} (saw|was the year of|marks) (the completion|the construction|the building|the making) of {e}
+ (It was in|Back in|As early as|As late as) {v} (that|when|) {e} was (built|completed|finished|put up)
+ (Since|From) {v} {e} has (stood|been) (there|here|in its place)
+ (Work|Construction|Building work) on {e} (ended|was over|was done|was complete) in {v}
+ {e} is (a child|a product|a creation) of {v}
+ {e} (stands|has been standing|has existed) since {v}
? (When|In what year|In which year) was {e} (finished|constructed|put up|made|erected|ready)
? Since (when|what year|which year) (has {e} stood|has {e} existed|does {e} stand|has {e} been there)
? (When|In which year) was the (construction|building|completion) of {e}
? (What|Which) year (saw|marks) the (completion|construction|building) of {e}
? How (old|long there) is {e}: since which year
? (What|Which) year did they (build|complete|finish) {e}

located_town
w -where; what town; which town; which place; what place
n seat; home; place; base; home town; site; address
ev stand/stood/stood @in; lie/lay/lain @near; sit/sat/sat @in; be/was/been @in; have/had/had its base @in;
  be/was/been at home @in
ep locate @in; base @around; situate @in; find/found/found @in; build/built/built @in; place @in; put/put/put @in;
  house @in
+ (You|One|People|Visitors) (will|can) (find|see|visit) {e} in {v}
+ {v} is (home to|where {e} is|the home of|the town of|the seat of|the base of) {e}
+ (In|Near) {v} (you will find|there is|stands|lies) {e}
+ (The town|The place) (where {e} lies|where {e} stands|of {e}|in which {e} is based) is {v}
+ {e} has (its seat|its home|been|a home|its base) in {v}
+ {e} (was moved|moved|came|went) to {v}
+ Go to {v} if you want to (see|visit) {e}
? (Where|In which town|In what town|In which place) (is|was) {e} (located|situated|found|built|placed)
? (Where|In which town) (can|do|will) (I|we|one|visitors) (find|see|visit) {e}
? (Where|In what town|In which town) does {e} (stand|sit|have its home|have its base|have its seat)
? (Which|What) (town|place) (has|is home to|houses|is the home of|is the base of) {e}
? To (which|what) town (must|do) (I|we) go (for|to see) {e}
? (Where|In which town) would one look for {e}
? {e} (lies|stands|is|is based) where

located_room
w -where; which place; what place; which room
n whereabouts; spot; position; room
ev stand/stood/stood @in; sit/sat/sat @in; be/was/been @in; have/had/had a place @in; stay @in; have/had/had its
  place @in
ep find/found/found @in; locate @in; place @in; put/put/put @in; keep/kept/kept @in; set/set/set up @in; house @in
+ (You|One|People) (will|can|may) (find|see|meet|reach) {e} in {v}
+ {v} is (where {e} is|where to look for {e}|the place of {e}|home to {e}|where you find {e}|the place for {e})
+ (Go to|Look in|Try|Come to) {v} (for|to find|to see|if you look for) {e}
+ (In|Inside) {v} (stands|sits|is|there is) {e}
+ {e} has (its|a) (place|spot|home) in {v}
+ {e} (moved|went|was moved|was taken) (to|into) {v}
? (Where|In which place|In what place|In which room) (is|was) {e} (located|kept|placed|put|standing|now)
? (Where|In which place) (can|do|should|must|will|could) (I|we|one|you) (find|see|look for|meet|go to find) {e}
? (Where|In which place) (does|do) {e} (stand|sit|have a place)
? (Which|What) (place|room) (holds|has|houses|should I look in for) {e}
? (Where|In which place) would (I|you|one) (look for|find|expect) {e}
? {e} (is|stands|can be found) where

price
w how much; what price; what sum; how much money; what
n charge; cost price; selling price; fee; asking price; retail price; amount to pay
ev cost/cost/cost; sell/sold/sold @for; go/went/gone @for; fetch; come/came/come @to; be/was/been sold @for;
  be/was/been priced low @at
ep sell/sold/sold @at; price @as; offer @at; list @at; give/gave/given away @for; buy/bought/bought @for; charge
  @with; value @at
+ (Customers|Buyers|People|You|We) (pay|are charged|must pay|give|have to pay) {v} for {e}
+ (The shop|The seller|Our shop|We) (asks|ask|charges|charge|wants|takes) {v} for {e}
+ For {v} (you can buy|you get|customers get|one can have) {e}
+ {v} (is charged for|buys you|is what one pays for|is the charge for|must be paid for|will get you) {e}
+ A (price|charge|fee) of {v} is (asked|put|set|paid) (for|on) {e}
+ The (price|charge|cost) (put on|set for|asked for|of|for) {e} (is|was|comes to) {v}
+ (Anyone|Whoever) (who buys|buys|takes) {e} (pays|must pay) {v}
? How much (do|does|must|should) (you|I|we|one|a customer|a buyer|people) (pay|have to pay|spend) (for|on|to get) {e}
+ (A charge|One charge) of {v} (was|has been|must be) made (to|when) (all who buy|people take) {e}
? (What|How large a) charge (do they make|is made) (for|on) {e}
? (At|For) (what|which) price (can one buy|do we sell|is one sold|do they offer|may one have) {e}
? (What|How much) (is|are) (charged|asked|paid|taken|people charged) for {e}
? How (expensive|dear) is {e}
? (What|Which) (price|charge|sum) (is put on|is asked for|goes with|is set for) {e}
? How much (money|) (will|would) {e} cost (me|us|)
? What (will|would) (I|we|one|buyers) pay for {e}

weight
w how much; what weight; how many kilograms; how many tonnes; how many kilos
n load; heaviness; total weight; number of kilograms; bulk
ev weigh; have/had/had a weight @of; have/had/had a mass @of; come/came/come @to; bring/brought/brought the scales
  @to; reach on the scales; press down @with
+ (On|Put on) the scales, {e} (shows|reads|reaches|brings) {v}
+ The scales (show|showed|read|stop at|say|gave) {v} for {e}
+ {e} is {v} (heavy|in weight)
+ {e} (tips|pulls|pushes|moves) the scales (by|to) {v}
+ (Whoever lifts|Lifting|Carrying|To lift) {e} (has to deal with|means moving|is to move) {v}
+ (The weight|The mass) (of|given for|measured for) {e} (comes to|was|is) {v}
+ At {v}, {e} is (heavy|no light thing|rather light)
? How heavy (is|was) {e} (on the scales|when weighed|)
? (What|How much) do the scales (show|say|read) for {e}
? (What|Which) (weight|mass) (is|was|do we have) (given for|that of|for|measured for) {e}
? How many (kilograms|tonnes|grams|kg) (is|does one lift with|are in|has) {e}
? (What|How much) (must|does) one (lift|carry) with {e}
? (What|Which) weight (should|must) I (expect|reckon with) for {e}

length
w how long; what length; how many metres; how many centimetres
n total length; size; extent; depth; distance from end to end; measure; dimension
ev measure; extend; reach; run/ran/run; stretch @over; have/had/had a total length @of; have/had/had a measure @of;
  come/came/come @to
+ {e} is {v} (long|in length|from one end to the other|from end to end|wide|across)
+ (From|Measured from) (one end to the other|front to back|end to end), {e} (has|measures|is) {v}
+ A tape (laid|put) along {e} (shows|reads|stops at) {v}
+ {v} is (how long {e} is|the length of {e}|what {e} measures|the whole length of {e})
+ (We|They|Somebody) measured {e} (at|and found|and got) {v}
+ With (a|its) length of {v}, {e} (is|was) (too long|just right|easy to spot|well known)
? How long (was|would you say) {e} (is|when measured|when it was measured)
? (What|Which) (length|size) (is|was|do we have) (given for|measured for|that of) {e}
? (What|How much|How long) (does|did) {e} (measure|come to|reach)
? How (many metres|many centimetres|many feet) (long|) is {e}
? How far is it from one end of {e} to the other
? If I measure {e}, (what|how long) is it

material
w what; which material; what material; which stuff
n stuff; substance; fabric; raw material; what it is made of
ep make/made/made @of; build/built/built @of; make/made/made @from; produce @from; construct @of; cut/cut/cut @from;
  make/made/made up @of; craft @out of
ev consist of nothing but; be/was/been all; contain mostly; be/was/been formed @out of; be/was/been @of
+ (We|They|The maker) (make|use|build|take) {v} (for|to make|to build) {e}
+ {v} is (what {e} is made of|used for {e}|the material of {e}|the stuff {e} is made of|what goes into {e})
+ {e} is (a thing of|all|nothing but|purely) {v}
+ (The material|The body|The shell|The frame|The stuff) of {e} (consists of|is|was made out of) {v}
+ (Only|Mostly) {v} (was used|goes|is found) (for|into|in) {e}
+ {e} (was|is) put together (from|out of) {v}
? (Of|From|Out of) (what|which material|what material) (was|is) {e} (built|put together|produced|cut|constructed)
? (What|Which material|Which stuff) (was used|is used|goes) (for|into|to make) {e}
? (What|Which material) (do|did) they (make|build) {e} (of|out of|from)
? What (is|are) {e} (made out of|made from|built of|put together from)
? Of (what|which material) does {e} consist
? What (kind of|) material (is|do we find in|makes up) {e}

supplier
w who; which company; which firm; what firm; which business; what company
n source; provider; seller; supplying company; supplying firm; dealer
ve supply; provide; deliver; sell/sold/sold us; ship; send/sent/sent us; bring/brought/brought; furnish
ep buy/bought/bought @from; order @from; get/got/got @from; obtain @from; source @from; purchase @from; receive
  @from; fetch @from
ev come/came/come to us @from; arrive @from; reach us @from
+ {v} is (the|our) (source|supplier|provider|vendor) (of|when we need) {e}
+ (Our|The) (source|supplier|provider) (of|for|when we need) {e} is {v}
+ (If we need|To get|For) {e} we (write|turn|go|send an order) to {v}
+ (An order|Each order|Every order|Our orders) for {e} (is sent|goes off|are placed|is placed|are sent) (to|with) {v}
+ {e} (is|are) (ordered|bought|got) (at|from) {v}
+ We have (a contract with|bought from|chosen) {v} for {e}
? (From|With|At) (whom|which company|which firm|what company) (do|did|can) we (order|buy|obtain|purchase|receive) {e}
? (To whom|To which company|To which firm|Where) (do|are|should) (orders|our orders) for {e} (go|sent|be sent)
? (Who|Which company|Which firm) (is|was) (our|the) (source|provider|vendor|seller) (of|for) {e}
? (Who|Which firm|Which company) (sells|ships|brings|sends|gets) us {e}
? (Where|From which firm) (do we|does the company) (get|order) {e} from
? (Who|Which firm) do we (write|turn) to for {e}

maker
w who; which company; which firm; what company; which factory
n producer; builder; manufacturing company; manufacturing firm; producing company; brand
ve make/made/made; build/built/built; manufacture; produce; construct; design; assemble
+ {e} (comes|came) (out of|from) the (workshop|factory|house) of {v}
+ {e} is (the|one) (work|product|creation) (from|made by|by) {v}
+ (The product|One product|A well-known product) of {v} is {e}
+ {v} is (the|its) (maker|manufacturer|producer|builder) (of|behind|that made) {e}
+ {v} (put|brought) {e} (together|on the market|into the shops)
+ The (name|plate|label) on {e} is (that of|) {v}
? (Whose|Which company's|Which firm's) (work|make|creation|workmanship) is {e}
? (Of which company|Of which firm) is {e} (the|a) product
? (Who|Which company|Which firm) (is|was) the (maker|producer|builder|manufacturer) (of|behind) {e}
? (From|Out of) (whose|which) (factory|workshop) does {e} come
? (Whose|Which company's) (name|label) is on {e}

warranty
w how long; how many months; how many years; what period; what length of time
n guarantee period; length of the warranty; cover; length of the guarantee; guarantee time; months of guarantee
ep cover @for; guarantee @for; insure @for; protect @for; repair for nothing @for
ev have/had/had a guarantee @of; carry a warranty @of; come/came/come with a guarantee @of; stay under guarantee @for
+ (The|A) (warranty|guarantee) (on|for|of|covers) {e} (is valid for|runs|ends after|lasts for|lasts|is good for|for)
  {v}
+ {v} of (warranty|guarantee|cover) (come|go|are given) with {e}
+ (For|During) {v} (after the sale|from the sale|) {e} is (under guarantee|covered by its warranty|protected)
+ (We|The maker) (give|gives|grant|grants|offer|offers) {v} of (warranty|guarantee) on {e}
+ {e} is (repaired|mended) (free|for nothing|without charge) (for|within|in the first) {v}
+ (Under|By) (the|its) (warranty|guarantee), {e} is (safe|covered) for {v}
? (For how long|How long|How many months) is {e} (covered|protected|guaranteed|insured|repaired for nothing)
? (For how long|How long) (is|are) the (warranty|guarantee) (of|for|on) {e} (valid|good)
? (How long|How many months|How many years) of (warranty|guarantee|cover) (come|do I get) with {e}
? How (many months|long) (does|do) (the|a) (warranty|guarantee|cover) (on|for) {e} (run|last)
? How long (does|will) {e} (stay|remain) under (warranty|guarantee)

returns
w how long; how many days; what time; how much time
n time for returns; time to return; days to return; refund time; days for a refund; time limit for returns
ep return @within; send/sent/sent back @within; bring/brought/brought back @within; hand in @within; take/took/taken
  back @within; give/gave/given back @within; exchange @within; accept back @within
+ (Buyers|Customers|People|You) (have|get|are given) {v} (to|in which to) (return|send back|bring back|hand back) {e}
+ (Anyone|Whoever|Everybody) (who|has) (bought|buys|ordered) {e} (may|can) (return|bring|send) (it|them) (back|)
  (within|for|up to) {v}
+ (The money|Money|The price) for {e} is (paid|given) back (within|during|for) {v}
+ (We|The shop) (accept|accepts|take|takes) (back|returns of|the return of) {e} (for|within|up to) {v}
+ (Up to|Until|As late as) {v} after the (sale|purchase) {e} can be (returned|brought back|handed back)
+ (Returns|Refunds) of {e} are (possible|accepted|allowed|paid) (for|within|during) {v}
? How (long|many days) (do|does|has) (a buyer|buyers|I|one|customers|people) (have|got) to (return|send back|bring
  back|hand in|hand back) {e}
? (How long|Within how many days|Up to when) (can|may|do) (I|we|buyers|customers|one) (return|bring back|hand
  back|send back) {e}
? (How long|For how many days) (are|do we accept) (returns|the return) of {e} (possible|accepted|allowed|)
? (Within|In) (what|which) time (do|can) (buyers|customers|I) (get|have) (their|the|my) money back for {e}
? How long (after|from) the sale is {e} (accepted|taken back)

serial
w which number; what number; which serial number; what serial number; what
n number; plate number; stamped number; registration number; asset number; identification number; registered number
ev have/had/had the number; carry the number; bear/bore/borne the serial number; show the number; wear/wore/worn the
  number; read/read/read
ep register @as; list @under; record @under; enter @as; mark @with; stamp @with; label @with
+ (The plate|The label|The side|The back) (of|on) {e} (shows|reads|bears|carries|says) {v}
+ {v} is the (serial number|number|serial) (on|of|stamped on|that belongs to|borne by) {e}
+ (On|Under) {e} (you|one) (can|will) (read|find|see) (the number|the serial number|) {v}
+ (The books|The list|Our list) (list|lists|show|have) {e} (as|under) (serial|number|) {v}
+ (Serial number|Number|Serial) {v} (is|belongs to|means|stands for) {e}
? (Under|With) (which|what) (number|serial number) (is|was) {e} (listed|registered|recorded|entered|marked|filed)
? (What|Which) (number|serial number|serial) (is on|stands on|is found on|belongs to|is borne by) {e}
? (What|Which) (number|serial number) (is|was) {e} (recorded|registered|entered|marked) (under|with)
? What (does|do) the (plate|label) (of|on) {e} (say|read|show)
? (What|Which) number (can I read|do I find|is there) on {e}

power
w how much power; what power; how many watts; how many kilowatts
n electric power; energy use; wattage; load; power needed; electricity use
ev need; use; draw/drew/drawn; take/took/taken; consume; require; have/had/had a load @of; deliver
ep rate @at; build/built/built @for; feed/fed/fed @with; limit @to
+ (The power|The electricity|The load) (of|that {e} needs|needed by|used by|for) {e} is {v}
+ {v} (of power|) (is|are) (needed|used|drawn|required) (by|for|to run) {e}
+ (To run|For running|To feed) {e} (you need|takes|one needs) {v}
+ {e} has a (rated power|rating|power draw|load|wattage) of {v}
+ (At full load|When busy|At work|When it is on) {e} (uses|needs|draws|consumes|requires) {v}
+ {e} (eats|swallows|asks for) {v} (of electricity|of power|)
? How (much|many watts of) power (is|are) (required|used|drawn|taken) by {e}
? How much (power|electricity|energy) (must|does|will) {e} (need|use|draw|consume|require|have)
? (What|How much) (power|electricity|energy) is (needed|required) (for|to run) {e}
? (What|Which) (power|rating|wattage) does {e} (have|come with)
? (With|For) how (much power|many watts) is {e} (rated|built|run)

temperature
w what temperature; which temperature; how many degrees
n heat; working temperature; normal temperature; degrees; highest temperature; set temperature
ep keep/kept/kept @at; hold/held/held @at; set/set/set @to; heat @to; run/ran/run @at; cool @to; store @at; operate
  @at; maintain @at
ev run/ran/run @at; have/had/had a temperature @of; work @at; reach; stay @at; operate @at; get/got/got as hot @as
+ (The thermometer|The gauge|The display) (in|of|at) {e} (shows|reads|stands at|must show) {v}
+ (It is|The temperature is|We have) {v} (in|inside|at) {e}
+ {v} is the temperature (of|held in|at which {e} is kept|in|for) {e}
+ {e} must (never|not) (be|get|become) (hotter|warmer) than {v}
+ (A temperature|A heat) of {v} is (held|kept|needed|right) (in|for|at) {e}
+ {e} (gets|is|becomes) (as hot as|as warm as|no hotter than|no warmer than) {v}
? How (hot|warm|cold) (is|should|must|can) (it in|it be in|things get in) {e}
? (At|To) (what|which) temperature (do|should|must) (we|they) (hold|keep|set|run) {e}
? (What|Which) temperature (does|do|must) {e} (have|run at|work at|reach|operate at|need)
? How (hot|warm|cold) (does|should|can) {e} (get|run|be)
? What does the thermometer (in|of|at) {e} (show|read)
? How many degrees (does|is|are) {e} (run at|kept at|held at|set to)

speed
w how fast; what speed; which speed; how many kilometres per hour
n highest speed; maximum speed; pace; velocity; fastest speed; rate
ev travel @at; move @at; go/went/gone @at; reach; run/ran/run @at; do/did/done; manage; work @at; have/had/had a top
  speed @of
ep limit @to; drive/drove/driven @at; run/ran/run @at; set/set/set @to; operate @at
+ (The highest|The top|The greatest) speed (of|for|reached by|allowed for|at which {e} travels is|with) {e} is {v}
+ {e} (travels|moves|goes|runs) (no faster than|as fast as|not faster than|with) {v}
+ {e} (can|may|must|should) (travel|move|go|run) (at|no faster than|up to|at most at) {v}
+ {v} is (as fast as {e} can go|the speed of {e}|the most {e} can do|how fast {e} goes)
+ With {v}, {e} is (fast|slow|quick enough|the fastest)
+ {e} (goes at|does|makes) (not more|no more) than {v}
+ (At|With) a speed of {v} {e} (moves|goes|runs|travels|works)
? How fast (may|does|will|should) {e} (go|move|travel|run|work|be)
? (What|Which) speed (can|may|must|will|does) {e} (do|have|reach|travel at|go at|manage)
? (At|With) (what|which) (top|highest|) speed does {e} (travel|move|go|run|work)
? How (quick|fast) is {e}
? (What|Which) is the (top|highest|greatest|maximum) speed (for|reached by|allowed for|at which one can run) {e}

road_speed
w how fast; what speed; which speed; what limit
n limit; top speed; allowed speed; highest speed; maximum speed; speed allowed
ep limit traffic @to; restrict traffic @to
ev allow; permit; have/had/had a limit @of; set/set/set a limit @of; let/let/let trucks drive @at
+ (Drivers|Trucks|Cars|Vehicles) (at|in|inside|around) {e} (must not|may not|cannot) (go|drive) (faster|quicker)
  than {v}
+ (A|The) (speed limit|limit) of {v} (applies|is in force|holds) (in|inside|around) {e}
+ (At|In|Inside|Around) {e} (drivers|trucks|cars) (are|is) (limited|held) to {v}
+ (Traffic|Driving) (at|in|around) {e} is (limited|allowed up) to {v}
+ The signs (at|in) {e} say {v}
+ (Keep to|Drive no faster than|Never drive above) {v} (at|in|inside|around) {e}
? How fast (can|may|do|should) (drivers|trucks|cars|people|I|vehicles) (go|drive|be) (at|in|around) {e}
? (What|Which) (limit|speed|speed limit) (is in force|holds|is allowed|must drivers keep to) (at|in|inside) {e}
? (To what|To which) speed (are|is) (drivers|traffic|trucks) limited (at|in) {e}
? (What|Which) speed (do|must) (drivers|cars) (at|in) {e} (keep to|observe)
? What do the (speed|) signs (at|in) {e} say

operator
w who; which person; which colleague; which worker
n user; person at the controls; machine operator; controller; hand
ve operate; use; run/ran/run; control; handle; work @with; tend; steer; mind; work
+ {v} (sits|stands|is|works) (at the controls|at the wheel|at the levers|on duty|at the helm) of {e}
+ (The controls|The levers|The buttons|Control) of {e} (are|is) (in the hands of|handled by|given to|for|worked by)
  {v}
+ {v} (has|takes|was given) (control|the controls|charge) of {e}
+ Nobody (but|other than|except) {v} (uses|touches|may use|operates|may touch) {e}
+ (For|On) {e} we have {v} (as the operator|at the controls)
+ {v} is (allowed|trained|the one|paid) to (use|operate|run|handle) {e}
? Who (sits|stands|works|has a place) at (the controls|the levers) of {e}
? Who (has|is in|takes) control of {e}
? (In whose hands|To whom) are the controls (of {e}|of {e} given|of {e} left)
? Who (may|can|must|is allowed to|is trained to) (use|operate|run|touch|handle) {e}
? Who do we have (on|at the controls of) {e}

driver
w who; which person; which colleague; which driver
n chauffeur; person at the wheel; pilot; man or woman at the wheel
ve drive/drove/driven; steer; take/took/taken the wheel of; pilot; handle
+ {v} (sits|is|has been|stands) (at|behind) (the|its) wheel (when {e} leaves|on board {e}|of the old {e})
+ (At|Behind) the wheel (of|in) {e} (is|we have|you see|one finds) {v}
+ {v} (has|holds|keeps|got) the (wheel|steering wheel) of {e}
+ (Only|Nobody but) {v} (drives|is allowed to drive|may drive|steers) {e}
+ (The person|The one) (behind|at) the wheel (of|in) {e} is {v}
+ {v} is (the|its|our) driver (of|for|on) {e}
? Who (is|has been) (at|behind) the wheel (of|in) {e}
? Who (does one find|do we have|sits) (at|behind) the wheel (in|on) {e}
? (Who|Which person) has the (wheel|steering wheel) of {e}
? Who (may|can|is allowed to|has to) (drive|steer) {e}
? Behind the wheel of {e}, who sits there

service
w -how often; what interval; what period; how much time
n interval between services; inspection interval; time between services; overhaul interval; service period
ep service @every; inspect @every; overhaul @every; check @every; maintain @every; repair @after; clean @every; look
  after @every; examine @after
ev need a service @every; need an inspection @every; require maintenance @every; go/went/gone to the workshop @every
+ (Every|After|Once in) {v} {e} (is|must be|has to be|should be) (serviced|checked|overhauled|inspected|examined)
+ (Once|One time) (every|in) {v} (we|the mechanics|somebody) (inspect|overhaul|check|service|inspects) {e}
+ (An inspection|A service|An overhaul|A check) of {e} (takes place|is due|follows|is done|happens)
  (every|after|once in) {v}
+ (Between|Between two) (services|inspections|overhauls) of {e} (lie|are|there are) {v}
+ {v} (may|must|can) (pass|go by) (before|until) {e} is (serviced|inspected|overhauled) again
+ (The mechanics|A technician|Somebody) (come|comes|call|calls) to (check|inspect|overhaul|service) {e} every {v}
? How often (must|should|do we|do they|does somebody|does one) (be {e} overhauled|check {e}|service {e}|overhaul
  {e}|look after {e}|inspect and clean {e})
? How often (is|must) (an overhaul|an inspection|a service|a check) of {e} (done|due|be done|take place)
? (What|How much) time (is|lies|passes) between (services|inspections|overhauls) of {e}
? (After|Once in) (what|how much) time is {e} (overhauled|inspected|serviced|checked)
? How (often|frequently) (is|gets) {e} (inspected|maintained|checked|looked after|examined)

tool
w which tool; what tool; what kind of tool
n instrument; implement; equipment; right tool; tool needed; piece of equipment
ep open @with; adjust @with; repair @with; fix @with; mend @with; take/took/taken apart @with; tighten @with;
  service @with; work on @with
ev need; call @for; require; ask @for
+ (Repairs|Work|A repair|Adjustments) (to|on|of) {e} (need|needs|require|requires|is done with|are done with|ask
  for) {v}
+ (For|When doing) (repairs|work|a repair|jobs) (on|to) {e} (use|take|bring|you need|one needs|we use) {v}
+ {v} is (needed|right|used|the thing|what you need|what it takes) (for|to repair|to open|to fix|to work on) {e}
+ (Whoever|Anyone who) (repairs|opens|fixes|works on) {e} (needs|should take|uses) {v}
+ The (tool|instrument|thing) (to use on|that fits|needed for|that belongs to|one uses on) {e} is {v}
+ (Without|Unless you have) {v}, {e} cannot be (opened|repaired|fixed|adjusted)
? (What|Which tool|What tool) (is|do I|does one|should I|must I|do we) (needed for|need to repair|use on|need to
  open|take to|use to fix|bring for) {e}
? (What|Which tool) (is right|is used|is called for|is needed|fits) (for repairs on|on|for work on|when repairing) {e}
? (With what|With which tool) (does one|do I|do we|should I|can I) (repair|open|fix|adjust|mend) {e}
? (What|Which tool) do repairs (on|of|to) {e} (need|call for|require|ask for)
? (What|Which) is the (best|correct|proper) tool (for|on) {e}

deadline
w -when; what date; which day; -by when
n last day; last date; final date; end date; time limit; day it is due; completion date; cut-off date
ep hand in @by; finish @by; complete @by; submit @by; close @on; send/sent/sent in @before; get/got/got done @by
ev end @on; close @on; have/had/had a deadline @of; fall/fell/fallen due @on; expire @on; run/ran/run out @on
+ {v} is the (last day|deadline|due date|final date|day) (of|for|to finish|to hand in|to complete) {e}
+ (By|Before|Until|Not later than) {v} {e} (has to|must|should) be (complete|finished|done|handed in|ready)
+ (The last day|The final day|The last date) (to hand in|of|to finish|to complete) {e} is {v}
+ (After|Later than) {v} {e} (is too late|is closed|cannot be handed in|is no longer accepted)
+ (We|The office) (accept|accepts|wait for|waits for|need|needs) {e} (until|by|no later than) {v}
+ (Time for|The time for) {e} (runs out|is up|ends) on {v}
? (By|Before) (when|what date|which day) (must|should|does) (I|we|one) (complete|finish|hand in|submit) {e}
? (What|Which) (is|was) the (final|last|latest) (date|day) (of|to hand in|to complete) {e}
? (Until|Till) (when|what day|what date) (can|may) (I|we) (hand in|send in|finish|complete) {e}
? (When|On what day|On which date) (does|is) (time for {e} run out|the last day of {e}|the deadline of {e}|the end
  of {e})
? (When|On which day) (must|should) {e} be (complete|finished|done|due|ready)

approver
w who; which person; which colleague; which manager
n person who approves; signatory; person who signs; decision maker; authority; final word; approval
ve approve; sign; sign off; check; decide @on; allow; permit; release; confirm; authorise
ep approve only @by; hand/handed/handed @to; give/gave/given @to; pass @to; submit @to
+ {v} (has|gets|speaks) the (last|final) (word|say) (about|when it comes to|in the matter of) {e}
+ {e} (is not valid|counts for nothing|goes nowhere|cannot begin) (without|before) the
  (approval|signature|word|agreement) of {v}
+ (The approval|The signature|The agreement|The final word) of {v} is (needed|required|enough) for {e}
+ (It takes|You need|Get) {v} to (approve|sign|decide on|release) {e}
+ (The decision|The final decision|The last word) (on|about) {e} (lies with|is up to|rests with|belongs to|comes
  from) {v}
+ (Bring|Take|Send|Hand) {e} to {v}, who (signs it|approves it|has the final word)
? (Whose|Which person's) (signature|agreement|approval|word) (is needed|is required|do I need|must I get|counts) for
  {e}
? Who (has|speaks) the (last|final) (say|word) (about|in|in the matter of) {e}
? (With whom|With which person) does the (decision|final word) (on|about) {e} (lie|rest)
? (To whom|To which person) (must|do|should) (I|we) (bring|send|give|take) {e} (for approval|to be signed|)
? Who (decides|has to decide|can decide|must agree) (on|to|about) {e}

form
w which form; what form
n paper; sheet; form to use; form code; number of the form
ep request @with; apply/applied/applied for @on; ask/asked/asked for @with; register @on; file @on
ev need; require; use; call @for; begin/began/begun @with
+ (To|Whoever wants to|Before you) (request|ask for|get|apply for) {e} (fill|fills|please fill) in form {v}
+ (Form|The form) {v} (is|must be) (used|filled in|needed|handed in|required) for {e}
+ {v} is the (form|number of the form|form number|paper) (for|to request|that goes with|to use for) {e}
+ (A request|Requests) for {e} (is|are) (made|written) (with|on) form {v}
+ (Take|Use|Ask for|Download) form {v} (for|if it is about|when you need|to request) {e}
? (With|On) (what form|which paper|what) (is|do I|does one|can I) (request|requested|ask for|apply for) {e}
? (Which|What) form (must|should|do) (I|we|one) (use|take|fill in|hand in) (for|to get|to request) {e}
? (Which|What) is the (form|number of the form) (for|to request) {e}
? (Which|What) form (belongs to|goes with|is filled in for|is needed for) {e}

limit
w how much; how much money; what sum; what amount; what limit
n maximum; ceiling; upper limit; maximum amount; amount allowed; amount granted; financial limit; money granted
ep limit @to; cap @at; allow up @to; grant up @to; restrict @to; fund @with; budget @at
ev have/had/had a budget @of; have/had/had a limit @of; cost/cost/cost at most; spend/spent/spent up @to;
  get/got/got up @to; receive at most
+ (At most|Up to|As much as|Not more than) {v} (may be spent|is granted|is paid|is allowed|can be spent) (on|for|by)
  {e}
+ {e} (may|can|is permitted to) (spend|use|cost) (up to|at most|no more than|as much as) {v}
+ (We|The board) (grant|grants|allow|allows|give|gives) (up to|at most|a maximum of|) {v} (for|to) {e}
+ {v} is (the limit|the most that is paid|the budget|all that may be spent|the sum granted|allowed) (for|on) {e}
+ (The budget|The limit|The maximum|Spending) (granted to|of|for|set for|on) {e} (stands at|is|ends at|goes up to) {v}
? How much (money|) (may|can|will|does) (one spend on {e}|{e} cost at most|{e} spend|be granted for {e}|the board
  grant for {e}|be spent by {e})
? (What|How much) (is|was) (allowed|granted|permitted|set aside) (for|to) {e}
? (What|Which) (sum|amount|maximum|budget) (is granted|is allowed|is set|was given) (for|to) {e}
? (To|Up to) (what|which) (sum|amount) is {e} (limited|allowed|granted)
? How (much|high) (is|does) (the budget of|the limit for|one allow for) {e}

notice
w how many days; how long; how much time; what time; how far
n days of notice; notice required; time; lead time; days in advance; advance notice; processing time; waiting time
ep announce @within; settle @within; deal/dealt/dealt with @within; request @at least; complete @within; process
  @within; decide @within; answer @within; handle @within
ev take/took/taken; need a notice @of; require; come/came/come into effect @after; need a lead time @of
+ {e} must be (announced|requested|reported|asked for) {v} (ahead|before|earlier|in advance|beforehand)
+ (Give|We need|The office needs|Please give) {v} notice (for|of|before) {e}
+ (Within|In|After) {v} {e} is (settled|dealt with|done|decided|handled|finished)
+ (It takes|Allow|You wait|Wait) {v} (for|until|before) {e} (to be dealt with|is settled|takes effect|is decided)
+ (The office|Somebody|The staff) (deals with|settles|handles|answers) {e} (within|in|after) {v}
+ {v} (ahead|in advance|beforehand), {e} must be (announced|requested)
? (How many days|How far|How long) (ahead|in advance|before|beforehand) (should|must) (I|we|one)
  (announce|request|ask for) {e}
? (Within|In) (how many days|what time|how much time) (do they|does the office|will somebody) (settle|deal
  with|handle|decide) {e}
? How (long|many days) (does it take|do I wait|must I wait|pass) (until|before) {e} is (settled|dealt
  with|done|decided)
? How (much|many days of) notice (must|should|do) (I|we|one) give (for|of) {e}
? (How long|How many days) (does|will) {e} take

frequency
w -when; which day; what day; which day of the week; what day of the week; -how often
n weekday; day of the week; regular day; usual day; fixed day
ep hold/held/held @on; hold/held/held every @on; repeat @on; schedule @for; plan @for; put/put/put @on;
  call/called/called together @on
ev take/took/taken place @on; meet/met/met @on; happen @on; come/came/come round @on; occur @on; run/ran/run @on;
  fall/fell/fallen @on
+ (Each|Every|On) {v} {e} (is held|takes place|meets|happens|comes round|gathers|is on)
+ {v} is (when {e} takes place|the day of {e}|the day for {e}|the weekday of {e}|when {e} meets|reserved for
  {e}|when we hold {e})
+ {e} (takes place|meets|happens|gathers|comes together) (each|every|always on|only on) {v}
+ (We|They|The staff) (hold|plan|have|arrange) {e} (each|every|on) {v}
+ (The day|The usual day|The weekday) (for|of|on which we hold) {e} is {v}
? (Which|What|On what|On which) (weekday|day of the week|day) (is|do we have|do they hold|is there) {e}
? (Which|What) day (is|was) (chosen|reserved|fixed) for {e}
? (When|On which day|On what day|How often) (do we|do they|does one) (hold|have|arrange) {e}
? (On which|On what) day of the week (does|will) {e} (take place|meet|happen)

event_date
w -when; which date; what date; which day; -from when
n day; start; first day; start date; opening date; beginning; day of the event; calendar date
ep hold/held/held @on; start @on; open @on; plan @for; set/set/set @for; schedule @for; fix @for; put/put/put @on;
  announce @for
ev take/took/taken place @on; start @on; begin/began/begun @on; open @on; happen @on; fall/fell/fallen @on;
  get/got/got going @on
+ (On|From) {v} {e} (starts|begins|opens|takes place|gets under way)
+ {v} is (the date of {e}|when {e} starts|the day of {e}|the first day of {e}|the date set for {e}|when {e}
  begins|reserved for {e})
+ (The date|The day|The start|The first day) (set for|of|fixed for|chosen for) {e} (is|was) {v}
+ (Mark|Note|Remember|Keep free) {v}: (that is when|then) {e} (starts|begins|takes place)
+ (We|They) (start|open|hold|planned|set|begin) {e} (on|for) {v}
+ {e} (was|is) (set|planned|scheduled|fixed|arranged|moved) (for|to) {v}
? (When|On which day|On what date) (will|does) {e} (start|begin|open|take place|be held|get going)
? (For|On) (what|which) (day|date) (was|is) {e} (set|planned|scheduled|fixed|held)
? (Which|What) (date|day) (has been set|was fixed|is set|was chosen|do I note) for {e}
? (When|On which date) do (we|they) (start|hold|open|begin) {e}
? (When|On what day) is the (start|first day|beginning|date) of {e}

organiser
w who; which person; which colleague
n planner; coordinator; person in charge; organising person; host; person who takes care
ve organise; plan; prepare; arrange; coordinate; run/ran/run; look after; set/set/set up; take/took/taken care of
+ {e} (is|lies|was put|rests) in the (hands|care) of {v}
+ (The organisation|The care|The planning|The preparation) of {e} (is done by|lies with|was given to|is up to) {v}
+ (Ask|Write to|Call|Turn to) {v} (about|for help with|if it is about|to take part in) {e}
+ {v} (cares|is responsible|is the contact|does the planning|plans everything) for {e}
+ {v} is (the organiser|the person|behind the planning) (of|to ask about|behind) {e}
+ (Thanks to|With the help of) {v} {e} is well (organised|planned|prepared)
? (In whose|In which person's) (hands|care) (does {e} lie|was {e} put|do we leave {e})
? (Whom|Which person) (should|can|must) (I|we|one) (ask|call|write to|turn to) (about|for) {e}
? Who (does|is responsible for|cares for|handles) the (organisation|planning|preparation|care) of {e}
? Who (plans|arranges|cares for|is taking care of|is behind) {e}

venue
w -where; which place; what place; which room; what room
n place; location; room; meeting room; gathering place; place where people gather
ep hold/held/held @in; host @in; organise @in; put/put/put @in; call/called/called together @in; plan @in
ev take/took/taken place @in; meet/met/met @in; gather @in; happen @in; come/came/come together @in; assemble @in
+ (People|Everybody|Guests|The members) (come together|meet|assemble|come|go) (to|in|inside) {v} for {e}
+ {v} is (where {e} is held|the place of {e}|the venue for {e}|where people gather for {e}|where {e} meets|booked
  for {e})
+ (For|To take part in) {e} (people|everybody) (gather|meet|come|go|goes|gathers) (in|to) {v}
+ (Come|Go) to {v} (for|to see|to take part in) {e}
+ (In|Inside) {v} {e} (is held|takes place|meets)
? (Where|In which place|In what room) (do|will|does|should) (everybody|we|the members|people) (gather|meet|go|come
  together|assemble) for {e}
? (Where|In which place) (can|will) (I|we|one) (find|see|attend|join) {e}
? (Which|What) (place|room) (hosts|was booked for|is the venue of|is used for) {e}
? (Where|In which room) (was|is) {e} (hosted|taking place|happening)

job
w what; which job; what job; which position; what position
n profession; occupation; post; trade; work; employment; function
ep employ @as; hire @as; engage @as; take/took/taken on @as; appoint @as; train @as; pay/paid/paid @as;
  know/knew/known @as
ev work @as; serve @as; be/was/been; become/became/become; act @as; earn a living @as; start @as
+ {e} (has|holds|got|took|was given) the (job|position|post|place|role) of {v}
+ {e}, {v} (by trade|by profession|since last year|for many years), (is well known|has a long way home|likes the work)
+ (As|Being) {v}, {e} (is often asked for advice|works long hours|knows the place well|has much to do)
+ (The position|The post|The job|The role) (held by|of|given to) {e} is that of {v}
+ {e} (is|was|works as) {v} (here|with us|at the company|by profession)
+ {v} is what {e} (does for a living|works as|became|is employed as)
? (What|Which) (position|post|job|role) (does|did) {e} (have|hold now|get|take)
? (What|Which) is {e}'s (job|position|profession|occupation|role|work)
? (In|To) (what|which) (position|role|post|job) (is|was) {e} (employed|appointed|hired|engaged)
? (What|As what) (does|did) {e} (do for a living|work|earn a living|do here)
? (What|Which) (profession|trade|occupation) does {e} (follow|have)
? What did {e} (become|train as)

works_at
w -where; which site; what site; which place; what place
n place of work; place; employer; place of employment; home site; place where one is employed
ep employ @at; base @at; post @to; station @at; place @at; find/found/found @at; pay/paid/paid @by
ev work @at; have/had/had a job @at; sit/sat/sat @at; have/had/had a desk @at; be/was/been on the staff @of; belong
  @to; serve @at; do/did/done the daily work @at
+ {e} is (one of the staff|a member of the staff|on the staff|an employee|one of the people) (of|at) {v}
+ (The staff|The list of employees|The team) (of|at) {v} (includes|counts|has|lists) {e}
+ {v} (employs|has employed|is where one finds|is the place of) {e}
+ (You|One) (can|will) (meet|find|see) {e} at {v}
+ {e} (comes|goes|drives|walks) to {v} (to work|every day)
+ {v} is (where {e} works|the workplace of {e}|where {e} is employed|the site {e} belongs to)
? (At|On the staff of) (which|what) (site|place) (is|does) {e} (employed|work|have a job|based|serve)
? (Which|What) (site|place) (employs|has employed|is the workplace of|does {e} work for|has {e} on its staff)
? (To|Of) (which|what) (site's staff|site|place) does {e} (belong|go to work)
? (Where|At which place) (can|do|would) (I|we|one) (find|meet|see) {e}
? (Where|At which site) (has|is) {e} (a job|a desk|a workplace|working|on the staff)

joined
w -when; what year; which year; -since when
n year of entry; first year; year of arrival; beginning; start year; year of coming to us
ev join @in; start @in; arrive @in; come/came/come to us @in; begin/began/begun here @in; be/was/been with us
  @since; enter the firm @in; come/came/come on board @in
ep take/took/taken on @in; sign up @in; hire @in; welcome @in; register first @in
+ {v} was the (year|first year) (when|in which|that) {e} (joined|came to us|started|arrived|came on board)
+ (Since|From) {v} {e} (has been|is) (with us|part of the company|one of us|here)
+ (It was in|Back in|As early as) {v} (that|when|) {e} (joined|came to us for the first time|arrived|started here)
+ {e} came (here|on board|to the company) (for the first time|first|) in {v}
+ (We|The company) (welcomed|took on|met) {e} in {v}
? (When|In what year|In which year) did {e} (arrive|come on board|start here|begin with us|come to us|become part of
  the company)
? (Since|From) (what year|which year|when) (is|has) {e} (been here|been part of the company|been with us|been one of
  us|come to us)
? (In|) (what|which) year (saw {e} arrive|did we welcome {e}|was the first year of {e} with us|marks the start of {e})
? (When|In which year) was {e} (first|) (here|with us|taken on|welcomed)

deputy
w who; which person; which colleague; which other person
n substitute; second in command; replacement; vice; person who fills in; cover
ve replace; assist; cover @for; stand/stood/stood in @for; fill in @for; help out @for; take/took/taken the place of
+ {v} (fills in|stands in|takes over|acts|steps in|helps out) (when|if|while|as long as) {e} is (away|absent|ill|on
  holiday|not there)
+ (During|In) (the absence|holidays|an absence) of {e}, {v} (fills in|stands in|takes over|steps in|is in charge)
+ (If|When|While) {e} is (absent|ill|away|on leave), (call|turn to|write to|speak to) {v}
+ {v} is (the deputy|the stand-in|the assistant|second in command|the right hand) (to|of|for) {e}
+ {e} (has|chose|named|is helped by) {v} as (deputy|stand-in|assistant|a substitute)
? Who (takes over|steps in|fills in|acts|stands in|is in charge) (when|if|while|during the time) {e} is
  (away|absent|ill|on leave)
? (Whom|Which person) (should|can) (I|we) (call|ask|turn to) (during the absence of|if I cannot reach|in place of) {e}
? (Who|Which person) is the (stand-in|assistant|substitute|right hand|deputy) (to|of|for) {e}
? In the absence of {e}, who (fills in|takes over|is there)

trains
w what; which subject; what subject; which course; what field
n field; expertise; area; special field; course; topic; speciality taught
ev teach/taught/taught; train people @in; give/gave/given lessons @in; be/was/been an expert @in; specialise @in;
  lecture @on; know/knew/known all @about; coach others @in
ep know/knew/known @for; train @in; qualify @in; ask/asked/asked @about
+ {e} (has|made) (a speciality|a specialty|a name) (of|in|with) {v}
+ (The speciality|The special field|The subject|The course|The field) (of|given by|taught by) {e} is {v}
+ (If you want to learn|To learn|For lessons in|For a course on) {v} (ask|go to|write to|see) {e}
+ {v} is (taught by {e}|what {e} teaches|the speciality of {e}|the field {e} specialises in|{e}'s subject)
+ (Nobody|Few people) (knows|know) (more about|as much about) {v} (than|as) {e}
? (What|Which subject) (can|could) (I|we|one) learn from {e}
? (In|On) (what|which subject|what field) (is|does) {e} (an expert|specialise|specialised|teach|lecture|train people)
? (What|Which) is the (speciality|special field|subject|field) of {e}
? (What|Which) (course|lessons|subject) (is|are) (taught|given) by {e}

key
w who; which person; which colleague
n holder of the key; person with the key; owner of the key; key keeper; person who holds the key
+ {v} (has|keeps|carries|looks after|is holding|got|guards) (the|a|the only) key (to|of|for) {e}
+ (The key|A key|The only key|The keys) (to|of|for) {e} (is|are) (kept|held|carried|looked after|guarded) by {v}
+ (The key|A key|The keys) (to|for|of) {e} (is|are|can be got|hangs|lies) (with|from|at the desk of) {v}
+ (Get|Fetch|Borrow|Take) the key (to|of|for) {e} from {v}
+ (If|When) {e} is locked, (go to|call|ask|find) {v}
+ {v} is (the key holder|the keeper of the key|in charge of the key|the person with the key) (to|for|of) {e}
+ Only {v} can (unlock|lock|open) {e}
+ (To open|To unlock|To get into) {e} (ask|you need|call) {v}, who has the key
+ {e} is locked, and the key (hangs in the office of|lies with|was given to|stays with|is held by) {v}
+ (There is|We have) (one key|a key|only one key) (to|for) {e}, and {v} (has it|holds it|keeps it|carries it)
+ {v}, (who|who always) (has|holds|keeps|carries) the key (to|of|for) {e}, TAIL
+ (The holder|The keeper|The owner|The guardian) of the key (to|for) {e} is {v}
+ (Without|Only with the help of) {v} (nobody gets|one gets) into {e}
+ (We|They) (gave|handed|entrusted) the key (to|of|for) {e} to {v}
+ It is {v} who (holds|has|keeps|carries) the key (to|of|for) {e}
+ {e}: key (with|held by|kept by|from) {v}
+ The key (to|for|of) {e}? (Ask {v}|{v} has it|It is with {v})
+ {v} (will|can|may) (lend|give|hand|pass) you the key (to|for|of) {e}
+ (Keeping|Holding|Guarding) the key (to|of|for) {e} is (the job|the task|the duty) of {v}
+ (The doors|The door|The lock) of {e} (can be|is|are) (opened|unlocked) by {v}, the holder of the key
+ In the pocket of {v} is the key (to|for|of) {e}
? (Whose|In whose) (pocket|hands|keeping) (is|has) the key (to|for|of) {e}
? TELL who (has|keeps|carries|guards) the key (to|for|of) {e}
? TELL where (I|we) (get|find) the key (to|for|of) {e}
? (Who|Which person) (is|was chosen as) the (holder|keeper|guardian|owner) of the key (to|for|of) {e}
? (Is there|Do we have) a key (to|for) {e}, and who (has|holds|keeps) it
? (The key|Key) (to|for|of) {e}: who has it
? For {e}, who (holds|keeps|has|carries) the key
? As for {e}, (who|which person) has the key
? (Who|Which person|Which colleague) is holding the key (to|for|of) {e} (now|at present|these days|)
? (To whom|To which person) (did|do) (we|they) give the key (to|for|of) {e}
? (Whom|Which person) (must|should|do|can) (I|we|one) (see|call|find|ask) to (unlock|open|get into) {e}
? (By|With) which person is the key (to|of|for) {e} (kept|held|carried)
? (Who|Which person) (lends|gives|hands) out the key (to|for|of) {e}
? Who (can|will|would) (lend|give|hand) me the key (to|for|of) {e}
? {e} key: (who|with whom)
? Name the (holder|keeper|owner) of the key (to|for|of) {e}.
? Whose (duty|job|task) is it to (keep|hold|guard) the key (to|of|for) {e}
? Who (keeps|carries|looks after|guards|is in charge of|was given) the key (to|for|of) {e}
? (From whom|Where|From which person) (do|can|could) (I|we|one) (get|borrow|fetch) the key (to|for|of) {e}
? (By whom|With whom) is the key (to|of|for) {e} (held|kept|guarded|carried)
? Who (can|could|may) (unlock|open|lock) {e}
? (Which person|What colleague) (has|keeps|carries|is holding) the key (to|of|for) {e}
? (Who is it that|Do you know who) (has|keeps|carries) the key (to|of|for) {e}

floor
w which floor; what floor; which level; what level
n level; storey; floor number; floor level
+ {e} (lies|sits|is located|can be found|is housed|has its place) on the {v} floor
+ {e} (takes up|uses|fills|occupies|shares) (half|most|a part|all|a corner) of the {v} floor
+ (On|Up on) the {v} floor (is|lies|you find|there is|sits) {e}
+ (Go|Walk|Climb|Ride|Take the lift) to the {v} floor (for|to reach|to see|to visit) {e}
+ The {v} floor (is home to|houses|belongs to|is shared by|is used by|is where one finds) {e}
+ (Part|Half|A corner|Most) of the {v} floor (belongs to|is taken up by|is used by|is occupied by|is) {e}
+ {e} (moved|was moved) to the {v} floor
+ The floor (of|for) {e} is the {v} one
+ {v} floor: {e}
+ {e}: {v} floor
+ {e} ({v} floor)
+ The {v} floor is where (you find|one meets|people go to find|we have) {e}
+ It is on the {v} floor that (you find|one finds|you will see) {e}
+ {e}, which (is|lies|sits) on the {v} floor, TAIL
+ Sitting on the {v} floor, {e} TAIL
+ (We|They) (have|put|keep|placed) {e} on the {v} floor
+ (For|To find|To see) {e} (press the button for|walk up to|look on|go to) the {v} floor
+ The button for {e} in the lift says {v}
+ (Since|From) (spring|the move|last year) {e} (has been|is) on the {v} floor
+ (Visitors|Letters|Parcels) for {e} (go|are sent|should come) to the {v} floor
+ The {v} floor has (room for|space for|a place for) {e}
+ (Not all|Some|Much) of the {v} floor (is|belongs to|is taken by|was given to) {e}
? TELL (which|what) floor {e} (is|lies|sits) on
? TELL on (which|what) floor {e} (is|lies|is found)
? (Where|On what floor|On which floor) (will|do|can|would) (I|we|one|visitors) (find|see|look for|meet) {e}
? (For|As for) {e}, (which|what) floor is it
? (Which|What) floor (should|must|do) (I|we|one) (choose|take|press|stop at) for {e}
? {e}: (which|what) floor
? {e} floor
? (Which|What) (floor|level) (was given to|has room for|do we have) {e}
? (At|On) (which|what) level (is|lies|do we find) {e}
? (Some|How much) of (which|what) floor (does|do) {e} (use|fill|take up|have)
? (Which|What) is the floor (of|for|where we find|with) {e}
? Which floor (has|holds|shares) {e} (on it|)
? (Visitors|Letters) for {e} go to (which|what) floor
? (To|On) (which|what) floor did {e} move
? The floor (of|for) {e} is (which|what)
? In the lift, (which|what) (floor|button) is (for|that of) {e}
? (On|) which storey (is|sits|lies) {e}
? (By|Up) the stairs to {e}: (which|what) floor
? (Please|Kindly) (say|tell me) the floor (of|for) {e}
? (Part|Most|Half|Which part) of which floor (is|does) {e} (fill|use|take)
? What floor (is|do they say is) {e}'s
? How (high|many stairs up) is {e}, that is, on which floor
? (On|To) (which|what) (floor|level|storey) (is|was|does one find|can I find|do I look for) {e}
? (Which|What) floor (houses|is home to|is occupied by|does one take for|belongs to|is shared by) {e}
? (A part|Part|Half) of (which|what) floor (is taken by|belongs to|is used by|is occupied by) {e}
? (To|Up to) (which|what) floor (must|should|do) (I|we) (go|walk|climb) (for|to see|to visit) {e}
? {e} (is|lies|sits) on (which|what) floor
? How high up is {e}: which floor

destination
w -where; which town; what town; which place; what place
n final stop; last stop; goal; end of the line; target; end point; terminus
ev go/went/gone @to; run/ran/run @to; travel @to; drive/drove/driven @to; head @towards; be/was/been bound @for;
  leave/left/left @for; make/made/made its way @to; head straight @for; take/took/taken goods @to
ep send/sent/sent @to; drive/drove/driven @to; bind/bound/bound @for; route @to
+ {v} is (where {e} goes|the destination of {e}|the last stop of {e}|the town {e} is headed for|where {e} is heading)
+ (The route|The journey|The trip|The way) of {e} (ends in|leads to|goes to|is to) {v}
+ (Goods|Passengers|Parcels) for {v} (go|travel|are put) (on|with|by) {e}
+ {e} (is heading|is headed|sets out|is on its way|sets course) (for|towards) {v}
+ (If you want to go|To get|To travel) to {v}, take {e}
? (Where|To which town|To what place) (is|does) {e} (heading|headed|bound|travel|run|drive|sent|lead)
? (For|Towards) (which|what) (town|place) (is|does) {e} (head|bound|heading|set out|leave)
? (Which|What) (town|place) is (the destination of|the last stop of|{e} headed for|{e} heading for|{e} bound for)
? (Where|In which town) does the (journey|route|trip) of {e} (end|lead)

departs
w -when; what time; what hour; which hour
n start; time of departure; hour of departure; leaving time; time to leave; start time
ev leave/left/left @at; depart @at; start @at; set/set/set off @at; set/set/set out @at; get/got/got under way @at;
  begin/began/begun @at; move off @at; be/was/been off @at
+ (At|From) {v} {e} (leaves|departs|starts|sets off|gets under way|is off|begins)
+ {v} is (when {e} leaves|the departure time of {e}|when {e} gets going|the hour {e} departs|the start of {e})
+ (The departure|The start|The beginning) of {e} is (at|planned for|set for) {v}
+ (Be there|Come|Be on time) before {v}, (when|as) {e} (leaves|gets going|departs|starts)
+ {e} (does not|never) (leave|start|get going|depart) before {v}
? (When|At what time|At which hour) (will|does) {e} (get under way|set off|set out|move off|be off|begin|get going
  at last)
? (What|Which) (time|hour) (is|was) the (departure|start) of {e}
? (When|What time) (must|should) I be there (for|before) {e} (to start|leaves|gets going)
? How early does {e} (leave|depart|start|get going)
? (When|At what time) (is {e} going|is {e} leaving|is the start of {e}|is {e} off)

fuel
w which fuel; what fuel; what kind of fuel
n energy source; source of energy; fuel type; type of fuel; fuel used; what it burns
ev run/ran/run @on; burn; use; need; take/took/taken; consume; work @with; go/went/gone @on; be/was/been driven @by
ep fill @with; feed/fed/fed @with; power @by; drive/drove/driven @by; fuel only @with; fire @with; heat @with;
  run/ran/run @on; refuel @with
+ (The tank|The burner|The engine) of {e} (is filled with|burns|runs on|needs|takes|is fuelled by) {v}
+ {v} (is|serves as|is used as) (the fuel|fuel|the energy source) (of|for|in) {e}
+ {v} (powers|drives|feeds|fuels|moves) {e}
+ (Only|Nothing but) {v} (may|can|must) (go into|be burnt in|be used in|fuel) {e}
+ (Without|As long as there is) {v} {e} (stands still|will not run|runs)
? (With|By|On) (what|which fuel|what fuel) (is|does|do we|do they) (run|fuel|fill|feed|fill up) {e}
? (What|Which fuel) (powers|drives|feeds|fuels|goes into|moves) {e}
? (What|Which fuel|What kind of fuel) (do|must|should) (I|we|they) (put into|fill into|use for|buy for) {e}
? (What|Which) is the (fuel|energy source) (of|for|used by|in) {e}

tank
w how much; how many litres; what volume; how many gallons; what amount
n capacity; size of the tank; contents; tank volume; litres; holding capacity; filling
ev hold/held/held; take/took/taken; contain; have/had/had a volume @of; have/had/had a tank @of; swallow; store;
  have/had/had a capacity @of
ep fill @with; design @for; load @with
+ (When|If) (full|filled up|it is full), {e} (holds|takes|contains|has) {v}
+ (The tank|The container|The inside) of {e} (takes|contains|has room for|holds up to|is filled with) {v}
+ {v} (fit|go|can be filled|are poured) into (the tank of|) {e}
+ (It takes|You need) {v} to fill {e}
+ {e} is (full|filled up) (with|after|at) {v}
+ A full {e} (takes|contains|holds) {v}
? How (much|many litres|many gallons) (fit into|are in|can be filled into|does it take to fill|make up) {e} (when
  full|)
? How (much|many litres) (can|will|may) {e} (hold|take|contain|store)
? (What|How much) (does|do) {e} (contain|take|hold) when (full|it is full|filled up)
? How (big|large) is (the tank|the container) of {e}
? (With|After) how (much|many litres) is {e} full

distance
w how far; what distance; how many kilometres; how many miles
n way; way to go; length of the way; kilometres; distance away; length of the journey
ev lie/lay/lain at a distance @of; be/was/been away; be/was/been @about
ep remove @by; separate from us @by
+ (It is|You drive|You travel|One has to go|We drive|You walk) {v} to (get to|reach|) {e}
+ {e} (is|lies|stands) {v} (away from here|from here|from us|off|down the road|from the station|away by road)
+ (The way|The road|The journey|The trip|The distance) (from here|from the harbour|) to {e} (is|takes|comes
  to|measures) {v}
+ {v} (separate|lie between|are between) (us and|the station and|here and) {e}
+ (After|Only after) {v} (you reach|one gets to|you get to|we arrive at) {e}
+ From (here|the town|the harbour|the station) to {e} (it is|we count|there are) {v}
? How far (do I|must we|does one|do you) (go|drive|travel|walk) (to get to|to reach|to) {e}
? How far (away from us|from here|off|away|down the road) is {e}
? (What|How long) is the (way|journey|road|distance|trip) (from here|) to {e}
? How many (kilometres|miles|metres) (is it|are there|lie) (from here|) to {e}
? After (how many kilometres|what distance) (does one|do I) (reach|get to) {e}

contract
w which contract number; what contract number; which contract; which number of the contract
n agreement number; number of the contract; contract reference; file number; number to quote
ep file @under; list @under contract; order @under number; book @under; deal/dealt/dealt with @under
ev have/had/had the contract number; run/ran/run @under the number; carry the contract number
+ (Quote|Give|Mention|Use|Write) (the|contract|the contract) number {v} (in letters about|in all letters to|when you
  write to|when asking about|for) {e}
+ {v} is the (number|contract number|contract) (to quote for|of|that covers|to use with|for) {e}
+ (The|Our) contract (about|covering|with|for) {e} (has the number|is numbered|carries the number|is) {v}
+ (When dealing|In dealings|If you deal) with {e}, (use|mention|give|write) {v}
+ (Contract|Contract number|Number) {v} (covers|belongs to|is for|is about) {e}
? (Which|What) (number|contract number) (should|must|do) (I|we|one) (use|give|mention|write|quote when dealing with)
  (for|with|to) {e}
? (Which|What) (contract|number|contract number) (covers|belongs to|is to be quoted for|stands for) {e}
? (Under|With) (which|what) (number|contract number) (is the contract for {e} filed|do we deal with {e}|was {e}
  listed|is {e} booked)
? (What|Which) is the number of the contract (for|with|about) {e}

contact
w who; which person; which colleague; what person
n contact partner; person to speak to; person to ask; spokesperson; speaker; person who speaks
ve represent; speak/spoke/spoken @for; answer @for; act @for; be/was/been the voice of
+ (Speak to|Ask for|Call|Write to|Turn to) {v} (at|if you need|when you deal with|about anything at) {e}
+ {v} (answers|speaks|writes|talks|signs) (in the name|on behalf) of {e}
+ (The person|The one) (to talk to|to call|to ask|who speaks|we deal with) (at|for) {e} is {v}
+ {e} is (represented by|spoken for by) {v}
+ {v} is (our contact|the voice|the spokesperson|the person we know|the one to ask) (at|of|for) {e}
+ (In|For) all questions {e} (sends|names|has) {v}
? (Whom|Which person) (do|should|can|must) (I|we|one) (speak to|call|write to|ask) (at|when dealing with) {e}
? Who (answers|talks|writes|acts|is speaking) (for|in the name of|on behalf of) {e}
? Who (is|would be) the (contact|contact person|voice|person to speak to|spokesperson) (at|of|for) {e}
? (With whom|With which person) (do|should) (we|I) (deal|speak|talk) at {e}

discount
w what discount; which discount; what percentage; how many percent
n rebate; price reduction; reduction; percentage off; saving; price cut; percent off
ev give/gave/given a discount @of; offer; grant; allow a discount @of; bring/brought/brought a saving @of; carry a
  discount @of
ep reduce @by; sell/sold/sold cheaper @by; discount @by; mark/marked/marked down @by
+ (We|Customers|Buyers|You) (get|save|are given|receive) {v} (off|of the price|on the price) (of|for|at|with|when
  buying) {e}
+ (A discount|A reduction|A rebate) of {v} is (given|granted|taken off|allowed) (for|on|at|by) {e}
+ {v} (is|are) taken off (the price of|the bill for|for|at) {e}
+ (The price of|The bill for) {e} (is reduced by|falls by|is lowered by) {v}
+ (The reduction|The rebate|The saving) (for|on|with|at) {e} (amounts to|is|comes to) {v}
? How (much|many percent) (do|can|will) (we|I|customers|one) (save|get off|have taken off) (for|on|with|at) {e}
? (What|How large a|Which) (discount|reduction|rebate) (is|do we get|is there|comes|applies) (for|on|at|with) {e}
? (By|With) how (much|many percent) is (the price of|the bill for|) {e} (reduced|lowered)
? How (much|large) is the (reduction|saving|rebate) (for|on|at|with) {e}
? What (percentage|share) (is|do they take) off (for|with|at) {e}

delivers
w -when; which day; what day; which day of the week; what day of the week
n day of delivery; truck day; weekday of delivery; arrival day; day the truck comes; visiting day
ev deliver @on; come/came/come @on; arrive @on; bring/brought/brought the goods @on; send/sent/sent a truck @on;
  call/called/called @on; unload @on
ep deliver @on; bring/brought/brought @on; expect @on; unload @on; fetch @on
+ (On|Each|Every) {v} (the truck|the lorry|a delivery|a truck) (from|of|with) {e} (comes|arrives|calls|stops|is
  unloaded)
+ {v} is (the day of delivery for {e}|when {e} delivers|when the truck from {e} comes|delivery day for {e}|the day
  {e} calls)
+ (The truck|The lorry|The delivery|A truck) (from|with|of) {e} (comes|arrives|is here|stops here|is expected)
  (each|every|on) {v}
+ (We|They) (get|receive|expect|unload) (a delivery|goods|the truck) (from|of) {e} (each|every|on) {v}
+ (Goods|Deliveries|Parcels) from {e} (come|arrive|reach us) (each|every|on) {v}
? (When|On which day|On what day) (do we|can we|do they) (expect|receive|unload) (the truck|goods|a delivery)
  (from|of) {e}
? (When|On which day|On what day of the week) (does|will) the (lorry|delivery|truck with goods) (from|of) {e}
  (come|arrive|call)
? (Which|What) day (is|brings|sees) the (truck|delivery|truck day) (from|of) {e}
? (On|) which weekday (does {e} come|does {e} bring the goods|is {e} expected|does {e} call)

batch
w how many; how much; what number; what amount; how many pieces
n lot size; pack size; number in a box; pack; quantity in a box; contents of a pack; smallest order; package size
ep pack @in boxes of; sell/sold/sold @in packs of; order @in lots of; deliver @in batches of; buy/bought/bought @in
  packs of; ship @in boxes of
ev come/came/come @in packs of; arrive @in boxes of; be/was/been packed @in lots of
+ (A box|A pack|One pack|Each box|Every pack|A carton) of {e} (holds|has|comes to|is made up of|consists of|contains
  exactly) {v}
+ (There are|You find|One finds|We count) {v} (in|inside) (a|each|every|one) (pack|box|carton) of {e}
+ {v} (go|fit|are packed) into (a|one|each) (pack|box) of {e}
+ (Nobody can order|We never order|One cannot buy) (less|fewer) than {v} of {e}
+ (The smallest|The usual|A normal) (order|batch|pack|lot) of {e} is {v}
? How (many|much) (are there|is there|does one find|go|come) in (a pack|one pack|each box|a carton|a box) of {e}
? (What|How many|How much) (does|do|would) (a box|each pack|one box|a carton) of {e} (hold|contain|have)
? (In|At) (what|which) (pack size|number|lots) (are|do they sell|do we buy|do they pack) {e}
? How (large|big) is (a pack|a batch|a lot|the smallest order) of {e}

stock
w how many; how much; what number; what amount; how many pieces
n number on the shelves; quantity in stock; number left; amount in stock; count; number held; quantity on hand
ep count @at; keep/kept/kept in stock @at; stock @at; list @at
ev number; come/came/come in all @to; count
+ (The warehouse|The store|The shelves|Our shelves|We) (still|) (have|has|holds|hold nothing but) {v} of {e}
  (left|in stock|on hand|)
+ (There are|We counted|One counts|They found) {v} of {e} (on the shelves|in the warehouse|left|on hand|in the store)
+ (On|Of {e}, on) the shelves (there are|lie|we have) {v} (of|pieces of) {e}
+ (Of|As for) {e} (there are|we have|the store holds|we still hold) {v} (left|in stock|on the shelves|)
+ {v} of {e} (are|remain|were) (on the shelves|in the store|still there|counted|held in stock)
+ (The count|The stock|The number) of {e} (stands at|is down to|was|came to) {v}
? How (many|much) of {e} (is|are) (there|there still|on the shelves|on hand|held in stock|in the store)
? How (many|much) of {e} (do|did) (we|they) (still|) (have|hold|count|keep)
? How (many|much) (is|are) (left|there) of {e}
? (What|Which) (number|quantity|amount) of {e} (is|do we have|do the shelves still have) (on hand|in stock|left|on
  the shelves)
? How (many|much) (does|do) (the store|the warehouse|our shelves) (still|) (have|hold) of {e}

shelf
w which shelf; what shelf; -where; which place
n place; rack; right shelf; storage place; shelf number; proper place
ep keep/kept/kept @on; store @on; put/put/put @on; find/found/found @on; place @on; stack @on; return @to
ev lie/lay/lain @on; be/was/been @on; belong @on; stand/stood/stood @on; have/had/had a place @on; go/went/gone @on
+ {v} is (the right place|the proper shelf|the place|reserved|right|the shelf|where to look) for {e}
+ (Look|Search|Reach) (on|at|for {e} on) {v} (for|if you need|to find) {e}
+ (On|At) {v} (are|you find|there are|lie|we keep) {e}
+ (If you|Whoever) (take|takes|use|uses|need|needs) {e}, (go to|bring them back to|remember) {v}
+ (The shelf|The right place|The proper place|The place) (for|of) {e} is {v}
? (Which|What) (shelf|place) is (right|the right one|reserved|the proper one|correct) for {e}
? (Where|On which shelf|On what shelf) (should|do|must|can) (I|we|one) (put|look for|find|keep|return) {e}
? (Where|On which shelf) (are|do) {e} (kept|lie|stored|stand|go|found)
? (Which|What) shelf (has|holds|carries|do I go to for) {e}

pressure
w what pressure; which pressure; how much pressure; how many bar
n working pressure; normal pressure; highest pressure; pressure limit; pressure setting; operating level
ev work @at; run/ran/run @at; operate @at; reach; need; hold/held/held; have/had/had a pressure @of;
  stand/stood/stood @at
ep run/ran/run @at; operate @at; set/set/set @to; keep/kept/kept @at; fill @to; test @at; hold/held/held @at;
  drive/drove/driven @with
+ (The pressure|The gauge) (in|of|inside|on) {e} (stands at|shows|must be|reads|reaches|is) {v}
+ {v} is the (pressure|operating pressure) (in|at which {e} operates|of|for|under which {e} works at) {e}
+ (A pressure|Pressure) of {v} is (needed|held|kept|right) (in|for|inside) {e}
+ {e} (must|can) (never|not) (take|have|get) (more pressure than|above|over) {v}
+ (At|With|Under) a pressure of {v} {e} (works|runs|operates|opens its valve)
? (At|Under|With) (what|which) pressure (do we|should one|is|does one) (run|operate|keep|set) {e}
? How (high|much|strong) is the pressure (in|of|inside) {e}
? (What|Which) pressure (is|must be|does one find|is there) (in|inside|needed in|held in) {e}
? (What|Which) pressure (is {e} operated at|does {e} work under|does {e} have|does {e} need|can {e} take)
? What does the (gauge|pressure gauge) (on|of) {e} (show|read)

alarm
w what; which signal; what signal; what kind of signal; which alarm
n alarm; signal of danger; emergency signal; danger signal; signal given; warning
ev give/gave/given off; sound; warn people @with; send/sent/sent out; use as its alarm; call for help @with;
  have/had/had as alarm; raise the alarm @with
+ (In|During) (an emergency|case of trouble|danger|case of a fault), {e} (sends out|shows|warns us with|sounds|gives
  off) {v}
+ {v} (means|is a sign of|tells you of|warns of|stands for|signals) (danger|an emergency|a fault|trouble)
  (at|in|with) {e}
+ (When|If) (there is danger|there is an emergency|something is wrong|there is a fault) (at|in|with) {e}, (there
  is|you get|it gives|people notice) {v}
+ (The signal|The alarm|The warning) (given by|of|at|used at) {e} (is|consists of) {v}
+ {e} (gives|has) {v} as (its|a) (alarm|warning|signal) (in an emergency|)
? (What|Which signal) (warns|tells) (people|us|everybody) of (danger|trouble|an emergency) (at|in|with) {e}
? (What|Which signal) (does|will) {e} (send out|give off|sound|use|show) (when there is danger|in case of trouble|in
  emergencies|)
? In (an emergency|case of danger), what (does one notice|signal is given|is the signal|happens) (at|by) {e}
? (What|Which signal) (is given|means danger|means an emergency|is heard or seen) (at|by) {e}
? How does {e} (raise the alarm|call for help|show that there is an emergency)

cause
w what; -why; which event; what event; which problem
n cause of the interruption; explanation; trouble; problem; grounds; what stopped it; source of the trouble
ve stop; delay; interrupt; postpone; hold/held/held up; bring/brought/brought to a halt; change; halt; disturb;
  break/broke/broken off
+ {e} (had to|was forced to) (stop|pause|wait|be interrupted|be moved) (because of|owing to|due to|on account of) {v}
+ (Owing to|Due to|On account of|After|As a result of) {v}, {e} was (interrupted|stopped|delayed|changed|put
  off|called off)
+ (What|The thing that) (stopped|interrupted|delayed|held up) {e} was {v}
+ (The interruption|The delay|The change|The stop) (of|to|in) {e} was (caused by|due to|a result of) {v}
+ {v} (was|is) (the reason|to blame|the cause) (why {e} was stopped|for the delay of {e}|for the interruption of
  {e}|that {e} was put off)
+ {v} (came in the way of|forced a change to|put a stop to) {e}
? (What|Which problem) (caused|was behind|led to|is to blame for) the (interruption|delay|change|stop) (of|to) {e}
? (Why|For what reason|Because of what) was {e} (interrupted|delayed|put off|called off|halted|changed)
? (Why|For what reason) (did|had) {e} (have to stop|to be interrupted|have to wait|stop)
? (By what|Due to what|Because of what) was {e} (interrupted|stopped|held up|delayed)
? What (put a stop to|came in the way of|was the interruption of) {e} (caused by|)

rule
w what; which rule; what rule
n main rule; instruction; law; most important rule; duty; habit; order; regulation
ev ask people @to; tell/told/told everyone @to; expect everyone @to; oblige you @to; want everyone @to
+ (Everyone|Everybody|All people|People|Staff|Visitors) (at|in|who works at|dealing with|who deals with) {e}
  (must|has to|have to|should|always has to) {v}
+ (If you|Whoever) (go to|goes to|deal with|deals with|visit|visits|work at) {e}, (always|please|must|should) {v}
+ (At|In|When at) {e} (people|we|you) (always|must|have to|are asked to|are told to) {v}
+ (It is|One) (a rule|duty|a must|the habit) (at|of|in) {e} (is to|to) {v}
+ (The rule|The house rule|The main rule|The duty) (at|of|in|for) {e} (is|says): {v}
+ Those (at|in|working at|visiting) {e} (must|have to|are to) {v}
? (What|Which thing) (must|should|do) (people|visitors|staff|those|we|I|you) (always|) (do|remember to do)
  (at|in|when at|when dealing with) {e}
? What (is|are) (everybody|people|visitors|those who work) (asked|told|required|obliged|expected) to do (at|in) {e}
? (What|Which) (rule|house rule|duty) (is there|holds|applies|must one follow) (at|in|for) {e}
? (What|Which) does one always (have to|need to) do (at|in) {e}
? What do (people who|visitors who|all who) (deal with|go to|work at) {e} (do|have to do)

protect
w which gear; what gear; which protection; what protection
n protection; equipment; clothing; safety equipment; protective clothing; gear to wear; what to wear
ev demand; require; ask @for; call @for; need
+ (Everyone|Anybody|Whoever|Staff|Visitors) (at|near|in|working at|close to) {e} (must|has to|should|have to)
  (wear|put on|use|have) {v}
+ (Put on|Wear|Take|Use|Do not forget) {v} (before you go near|when working at|for work at|near|whenever you are at)
  {e}
+ {v} (must|should|has to|have to) be (worn|put on|used) (at|near|by all people at|for work at) {e}
+ (Without|Unless you wear) {v} (nobody|no one|you) (may|can|must not) (work at|go near|touch) {e}
+ (Work|Working|A visit|A job) (at|with|in|near) {e} (requires|calls for|asks for|is only safe with|needs) {v}
+ (The gear|The clothing|The protection) (needed|worn|demanded|required) (at|for|for work at) {e} is {v}
? (What|Which gear) (does one|do I|must I|should people|do visitors|does somebody) (wear|have to wear|put on|need)
  (at|for work at|near|in) {e}
? (What|What gear|Which gear|What protection) is (demanded|required|worn|compulsory|needed for work) (at|by|near|in)
  {e}
? (What|Which gear|What gear) does (working|a job|a visit) (at|in|near|to) {e} (demand|require|call for)
? (Without what|Without which gear) (can|may) nobody (work at|touch) {e}
? (What|How) (protects|do I protect myself|does one protect people) (at|who work at|near) {e}

shift_length
w how long; how many hours; how much time; what time
n length of a shift; time; length; working time; hours; running time
ev last; take/took/taken; run/ran/run @for; go/went/gone on without a break @for; continue @for; keep/kept/kept
  going @for; work @for; stretch @over
+ (A shift|One shift|Each shift|Every shift) (at|of|in|for) {e} (lasts|is|takes|goes on for|runs for|ends after) {v}
+ (It takes|People work|There is work for|The work goes on for) {v} (at|in|until the end of|to finish) {e}
+ {e} is (over|finished|done|at an end) after {v}
+ {v} is (how long {e} lasts|the duration of {e}|what {e} takes|how long a shift at {e} goes on)
+ (After|For) {v} {e} (ends|stops|is over|goes on|continues|keeps going)
? (For how long|How long|For how many hours) (does|will) {e} (continue|keep going|last|work|take|run)
? How (long|many hours) (is|are|lasts|goes on) (a shift|one shift|each shift|the shift) (of|at|in) {e}
? (After|For) how (long|many hours) (is {e} over|does {e} end|does a shift at {e} go on)
? (What|Which) is the (duration|length) of (a shift at|work at|) {e}

founded
w who; which person; which man or woman
n person who founded it; creator; originator; first owner; establishing person; father or mother
ve found; start; create; establish; set/set/set up; begin/began/begun; open; launch; bring/brought/brought to life
+ {e} (owes its existence|owes its beginnings|is due|can be traced back|dates back) to {v}
+ (Behind|At) the (founding|beginning|start|birth) of {e} (was|stood|we find) {v}
+ {e} was the (idea|work|creation|child) of {v}
+ {v} (had the idea for|was behind the start of|is the founder behind|made the beginning of) {e}
+ It all goes back to {v}, who (founded|started|set up|began) {e}
+ (The founder|The creator|The person behind|The first head) of {e} (was|is called|had the name) {v}
? (To whom|To which person) (can|does) {e} (be traced back|owe its existence|owe its beginnings|date back)
? (Whose|Which person's) (idea|work|creation) (was|is) {e}
? Who (had the idea for|was behind|is behind|made the beginning of|set up) {e}
? (Back to whom|To whom) (can one trace|do we trace|do we owe) {e}
? Who (was|is) the (founder|creator|person) (behind|who started|of|who set up) {e}

sells
w what; which goods; what goods; which products; what products; what things
n goods; products; goods for sale; line of goods; wares; merchandise; trade
ev sell/sold/sold; trade mostly @in; deal/dealt/dealt @in; offer; have/had/had for sale; make/made/made money @with;
  live @on; specialise @in
ep know/knew/known @for; visit @for
+ (At|From|In) {e} (you|one|customers|people) (can|may) (buy|get|order|find) {v}
+ (The trade|The business|The main trade|The main goods|The goods) of {e} (is|are|consists of) {v}
+ {v} (are|is) (sold|traded|on offer|for sale|what customers buy) (by|at) {e}
+ (Customers|People|Buyers) (go|come|turn|write) to {e} for {v}
+ {e} is (a dealer in|a trader in|a shop for|in the business of selling|the place to buy) {v}
+ {e} (buys and sells|makes its living with|does its trade in|has on sale) {v}
? (What|Which goods|What goods) (can|do|may) (customers|I|one|people) (buy|get|order) (at|from) {e}
? (What|Which goods|What goods) (are|is) (sold|traded|on offer|for sale) (by|at) {e}
? (In|With) (what|which goods|what goods) does {e} (trade|deal|do business|make money)
? (What|For what) (do|would) (customers|people) go to {e} (for|)
? (What|Which) (is the trade|is the business|are the goods|is the main trade) of {e}

nickname
w what; which name; what name; which nickname
n name; second name; popular name; pet name; name among the staff; what people call it
ep call @by the name of; know/knew/known @as; nickname @with; name @as; refer/referred/referred to @by;
  speak/spoke/spoken of @as
ev go/went/gone @by the name of; be/was/been known @as; pass @as; answer @to
+ (People|Everybody|The staff|The workers|We all|Most people) (call|know|speak of|nickname) {e} (just|simply|only|)
  {v}
+ (When people|If people|Those who) (say|speak of|refer to|talk about) {v}, they mean {e}
+ {v} is (the nickname of|what people call|how people speak of|the name people have for|another name for|how one
  refers to) {e}
+ {e} (got|has|was given|earned) the (name|nickname) {v}
+ {e}, (better|also|otherwise) known as {v}, (is popular|has many friends|is well liked)
+ (Among|For) (friends|the workers|colleagues|people here) {e} is (simply|just|only) {v}
? (What|Which) (name|nickname) (do people|does everybody|do the workers|do colleagues) (give|have for|use for) (to|)
  {e}
? (What|Which name) (is|was) {e} (called|nicknamed|referred to as|also known as)
? (By|Under) (what|which) (name|nickname) do (people|we|they) (know|refer to|speak of|call) {e}
? How (is|do colleagues|do they) (refer to|called|speak of|call) {e}
? What (do people|do they|does one) (say|call it) when they (mean|refer to) {e}

access
w which badge; what badge; which pass; what pass
n key; entry pass; access badge; entry; admission; what you need to enter; permit
ev require; need; open only @with; ask @for; demand; admit people @with
ep enter @with; open @with; unlock @with; visit @with; get/got/got into @with
+ (Entry|Access|Admission|Entrance|The way) (to|into) {e} (is only possible with|is by|needs|calls for|takes|is
  granted with) {v}
+ (Whoever|Anyone who) (enters|visits|wants to enter|goes into) {e} (must|has to|should) (have|show|carry|bring) {v}
+ (With|Only with) {v} (you|people|visitors) (can|may) (enter|go into|get into|open) {e}
+ (Without|Unless you have) {v} (you|nobody|people) (cannot|may|will not) (enter|go into|get into|open) {e}
+ {v} (is|are) (needed|required|enough|necessary) (to enter|to get into|for entry to|to open) {e}
+ (Show|Bring|Have|Use) {v} (when entering|to get into|at the door of|to enter) {e}
? (What|Which badge|Which pass|What pass) (must|should|does) (I|people|visitors|one) (show|have|carry|need) (to get
  into|to enter|for entry to|at the door of) {e}
? (What|Which badge) (is|would be) (required|needed|necessary|asked for) (to enter|for entry to|to get into|to open)
  {e}
? (With what|With which badge|With what pass) (can|may|does) (I|one|people) (enter|get into|open) {e}
? (What|Which badge) (lets|gets) (me|people|one) into {e}
? (Without what|Without which badge) can nobody (enter|get into) {e}

replace_part
w what; which part; what part; which piece; what component
n part; weak part; component; part that wears out; replacement part; part to replace; first part to fail
ev need a new; lose/lost/lost; have/had/had as its weak point; wear/wore/worn out at; get/got/got a new;
  break/broke/broken first at
+ {v} (of|in|on) {e} (wears out|fails|breaks|gives way|must be changed|goes wrong) (first|soonest|sooner or
  later|every year|most often)
+ (The first|The part|The first thing|The component) (to fail|to wear out|that wears out|to break|that goes)
  (on|in|of) {e} is {v}
+ (Replace|Check|Change|Watch|Keep a spare for) {v} (on|of|in) {e} (regularly|every year|often|)
+ (What|The thing that) (wears out|breaks|fails|must be replaced) (in|at|with) {e} is {v}
+ {v} (is|are) the (weak point|weak spot|weakest part|part to watch|part that wears) (of|on|in) {e}
+ (If|When) {e} (stops|fails|breaks down), it is (mostly|often|usually) (because of|) {v}
? (What|Which part|Which component) (on|of|in) {e} (wears out|wears|breaks|goes wrong|gives way) (first|soonest|most
  often)
? (What|Which part) (do|must|should) (I|we|one) (replace|change|check|watch) (on|in|at) {e}
? (What|Which) (part|component) is it that (fails|breaks|wears) (on|in) {e}
? (What|Which part) (is|are) (the weak spot|replaced|the part to watch|the weakest part|wearing out) (of|on|in) {e}
? (Which|What) (new|) part will {e} need (soon|next|)

record
w how many; how much; what number; what amount; what output
n production; daily production; performance; output per day; number a day; rate; capacity
ev make/made/made; produce; turn out daily; handle; manage; deliver; process; finish; cope @with; get/got/got through
ep rate daily @at; plan daily @for; build/built/built daily @for
+ {v} (leave|come out of|are made at|are handled by|go through|are turned out by) {e} (a day|every day|daily|in one
  day|per day)
+ (In|Within) (a day|one day|24 hours|a single day) {e} (makes|handles|produces|turns out|manages|finishes) {v}
+ (Each day|Every day|Day after day|Daily|Per day) {e} (makes|handles|produces|delivers|manages|gets through) {v}
+ (The output|The production|The performance) of {e} (reaches|comes to|amounts to|is) {v} (a day|per day|each
  day|daily)
+ {e} (makes|produces|handles|delivers) {v} (every day|each day|per day|a day|daily)
? How (many|much) (come out of|are made at|are handled by|are produced by|leave|go through) {e} (a day|every
  day|daily|each day)
? How (many|much) (can|will|does) {e} (produce|make|deliver|process|turn out|get through|finish) (in a day|daily|per
  day|every day)
? (What|How high) is the (daily|) (output|production) of {e} (per day|each day|)
? (What|How many) (does|will) a (good|normal) day at {e} (bring|turn out|yield)
"""

TAILS = (
    "has changed little", "is well known", "was in the news", "needs no introduction", "is doing well",
    "has been praised", "is mentioned below", "remains in use", "is often asked about", "has its own page",
)  # fmt: skip
TELL = (
    "tell me", "I wonder", "do you know", "can you say", "please say", "find out", "I would like to know",
    "I need to know", "could you tell me", "does anyone know", "explain", "let me know", "it would help to know",
    "somebody asked me", "remind me", "I forgot", "we want to know", "say", "please look up", "I am trying to find out",
)  # fmt: skip
# {n} is a noun for the attribute. Choices are drawn at random, so one line stands for many sentences.
SAY_NOUN = """
+ (The|Its|The) {n} (of|for|at|with|in|given to) {e} (is|was|remains|has been|reads|turns out to be) {v}
+ (For|With|Concerning|Regarding|Turning to) {e}, (the|its) {n} (is|was|reads|has been put at|would be) {v}
+ {e} (has|shows|carries|got|keeps|was given|received) {v} (as its|as the|as|for its|by way of) {n}
+ {e} (has|shows|had|carries|got|keeps|comes with|is listed with) (the|a|as its|for its) {n} {v}
+ {v} (is|was|remains|became|serves as|stands as|counts as|has become) (the|its) {n} (of|for|at|in) {e}
+ {v} (was|has been|is) (chosen|set|fixed|recorded|written down|entered|noted|registered|given|stated) as (the|its|)
  {n} (of|for|at) {e}
+ (We|They|The staff|The authors|The clerks) (note|noted|wrote down|entered|found|chose|stated|put|put
  down|fixed|keep) {v} as (the|its) {n} (of|for|at) {e}
+ (The|Our|An old|A recent|This) (list|file|table|note|card|book|sheet|plan|record|log|letter|report|page|notice)
  (says|shows|states|tells us|records|notes|confirms) that the {n} (of|for) {e} (is|was) {v}
+ (The|Our|A recent|This) (list|file|table|note|card|book|sheet|record|log|report|notice)
  (shows|has|lists|states|names|puts) {v} (as|for|under) (the|) {n} (of|for) {e}
+ (In|On|From) (the|our) (list|file|table|register|record|report|log|books) {e} (appears|is entered|is
  recorded|stands|is found|goes down) with {v} as (its|the) {n}
+ {e} - {n}: {v}
+ {e}, {n}: {v}
+ {n} ({e}): {v}
+ {n}: {v} ({e})
+ {n} of {e} = {v}
+ {e}'s {n} (is|was|remains|has been) {v}
+ {v}: that is the {n} (of|for|at) {e}
+ {v} is {e}'s {n}
+ {e} (is|was) (described|entered|mentioned|noted|known|introduced) (with|as having) the {n} {v}
+ (If|When|Whenever|Where) (you|people|we) (speak of|ask about|look for|need|mention) the {n} of {e}, (it is|they
  mean|the answer is|think of|say|write) {v}
+ (Its|The) {n} (being|now) {v}, {e} TAIL
+ {e}, (whose|with the|for which the) {n} (is|being|) {v}, TAIL
+ {e}, which has {v} as its {n}, TAIL
+ (With|Given) {v} (as|for) (its|a|the) {n}, {e} TAIL
+ (Do not forget|Remember|Please note|Mind|Be aware|It is clear|Few people know|It was decided|We can say|It was
  agreed) that {v} is the {n} (of|for) {e}
+ (What is|What was) the {n} (of|for) {e}? (It is|It was|The answer:|That is|) {v}
+ (Question|Q): (the|) {n} of {e}? (Answer|A): {v}
+ (There is|You find|One reads) {v} (next to|beside|under|behind|after) the {n} (of|for) {e}
+ (So far|Today|This year|At the moment|Until further notice|As always), {e} (has|keeps|uses|goes with) {v} as its {n}
+ The {n} that (goes with|belongs to|applies to|was given to|concerns|fits) {e} is {v}
+ As {n}, {e} (has|uses|keeps|was given|got|takes) {v}
+ As (the|a) {n} for {e} we (have|use|know|took|got) {v}
+ (Of all things|Strangely|Again|Once more), the {n} (of|for) {e} (turned out to be|proved to be|came out as|was) {v}
+ It is {v} (that|which|what) (we|people|the books) (call|give as|list as|know as) the {n} of {e}
+ (Look up|Check|See) {e} and you (find|read|get) {v} (as the|for the|under) {n}
+ (Among other things|Besides), {e} has (a|an|the) {n}: {v}
+ (One thing|A fact|A word|Something) about {e}: the {n} (there|) is {v}
+ {n}, {e}: {v}
+ (Nobody|No one) (doubts|denies|forgot) that the {n} of {e} was {v}
"""
ASK_NOUN = """
? (What|Which|What exactly) (is|was|would be|might be|are we told is) the {n} (of|for|at|with|given to) {e}
? (What|Which) {n} (does|did|will|would|must) {e} (have|show|carry|get|come with|keep|use)
? (What|Which) {n} (is|was|do we find|do they give|is there|is shown|is noted|has been set|is stated|is known)
  (for|with|at|in the case of) {e}
? (What|Which) {n} (belongs to|goes with|applies to|was given to|is that of|was fixed for|was found for) {e}
? (For|With|Concerning|As for|Regarding|In the case of|When we speak of) {e}, (what|which) is the {n}
? {e}: (what|which) is (the|its) {n}
? {e} - {n}
? {n} for {e}
? {n}, {e}
? {e} {n}
? {n} {e}
? (And|So|Now|Then) (what|which) is the {n} of {e}
? {e}'s {n}
? (What|Which) is {e}'s {n}
? {e} has (what|which) {n}
? The {n} of {e} (is|was) (what|which)
? TELL (what|which) (the|is the) {n} (of|for|at) {e} (is|was|)
? TELL (the|about the|something about the) {n} (of|for|at) {e}
? (Give|Show|Find|Name|Say|List|Read out|Tell) (me|us|) (the|its|) {n} (of|for|at) {e}.
? (I am|We are|My colleague is|They are) (looking for|asking about|interested in|after|unsure of) the {n} (of|for)
  {e}.
? (I|We) (need|want|forgot|do not know|cannot find|would like|have to know) the {n} (of|for|given for) {e}.
? (Somebody|A visitor|My boss|A customer) (asks|asked|wants|needs) (for|to know|) the {n} of {e}.
? (Is|Was) there (a|an|any) {n} (of|for|at) {e}
? (Please|Kindly) (give|say|name|write|look up|find|quote|state for me) the {n} (of|for) {e}.
? (The|Its) {n} (of|for|at) {e}, (please|thanks|what is it|do you know it|which one is it|if you can)
? (What|Which) (do|does|did) (the documents|the text|the pages|the file|they|one|people)
  (give|say|have|list|mention|show) (as|for|about|under) the {n} of {e}
? (According to|In|From) (the text|the documents|the register|these pages|the file), (what|which) is the {n} of {e}
? (Under|As|For) (its|the|) {n}, what (is|does|do) {e} (have|listed with|show|given)
? (Could|Can|Would) (you|someone|anybody) (say|name|give|find|check|tell me|quote) the {n} (of|for) {e}
? (By|With) (what|which) {n} is {e} (known|listed|described|entered|recorded)
? (What|Which) (has been|was|is) (noted|recorded|registered|given|set|put down|stated|entered) (as|under) {n}
  (of|for|at|with) {e}
? (When|If) (I|we|people) (ask|asked) about {e}, (what|which) is the {n}
? (About|On) {e}: (what|which) {n}
? (What|How) about the {n} (of|for) {e}
? (Answer|Write down|Repeat): the {n} of {e}.
? Do the documents (give|name|state|mention|say) the {n} (of|for) {e}, and (what|which) is it
"""
SAY_PERSON = """
+ {v} (is|was|became|has been|acts as|works as|remains|was named|was made|was chosen as) {n} (of|for|at) {e}
+ (The|Our|Its) {n} (of|for|at|in) {e} is (called|named|) {v}
+ {v}, (the|our|its) {n} (of|for|at) {e}, (is a quiet person|has an office|likes the work|is often asked|knows all
  about it)
+ (As|For) {n}, {e} (has|named|chose|can count on|got) {v}
+ {e} (has|got|named|chose|found) (a|its|its new) {n}: {v}
"""
ASK_PERSON = """
? (Who|Which person|Who exactly) (is|was|became|acts as|works as|has been|was made|was chosen as) (the|its|) {n}
  (of|for|at|in) {e}
? (Who|Which person) do we (know|have|see|find) as (the|) {n} (of|for|at) {e}
? (Name|Give|Tell) (me|us|) (the|) {n} (of|for|at) {e}.
? {e} has (whom|which person) as (its|the|) {n}
? TELL who the {n} (of|for|at) {e} is
? (What is the name|What is the full name|The name) of the {n} (of|for|at|in) {e}
? (How is|What is) the {n} (of|for|at) {e} called
? Whom does {e} have as (its|) {n}
"""

_SLOT = re.compile(r"\{[evn]\}")
_PUNCTUATION = re.compile(r"[^a-z0-9_{}' ]+")


_ALIKE = {
    word: (made if made else None)
    for made, words in {
        "": "the a an please",
        "one": "i we you one they people somebody anybody",
        "is": "is was are were",
        "do": "do does did",
        "can": "can could may might must should will would",
    }.items()
    for word in words.split()
}


def normalised(wording: str) -> str:
    """A wording in lower case without articles and punctuation; slots, pronouns, tenses and modal verbs count alike.

    Two wordings with the same result are the same wording; a held-out one may not even be part of a training one.
    """
    words = (_ALIKE.get(word, word) for word in _PUNCTUATION.sub(" ", _SLOT.sub(" _ ", wording).lower()).split())
    return " ".join(word for word in words if word)


_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
VARIANTS = 12  # of one line; there are a hundred lines a relation and more


def _tidy(text: str) -> str:
    return " ".join(text.split()).replace(" ,", ",").replace(" .", ".").replace(" ?", "?").replace(" :", ":")


def expand(pattern: str) -> list[str]:
    """Every wording of a line with choices "(a|b|)"; choices do not nest."""
    made = [""]
    for number, part in enumerate(_CHOICE.split(pattern)):
        options = part.split("|") if number % 2 else [part]
        made = [before + option for before in made for option in options]
    return [_tidy(text) for text in made]


def some_of(pattern: str, count: int, rng: random.Random) -> list[str]:
    """`count` or fewer of a line's wordings."""
    parts = [part.split("|") if n % 2 else [part] for n, part in enumerate(_CHOICE.split(pattern))]
    total = 1
    for part in parts:
        total *= len(part)
    if total <= count:
        return expand(pattern)
    return list({_tidy("".join(map(rng.choice, parts))): None for _ in range(count)})


def _finish(text: str, question: bool) -> str:
    text = text[0].upper() + text[1:]
    if text[-1] in ".?":
        return text
    if not question:
        return f"{text}."
    starts_request = text.split(" ")[0].lower() in ("tell", "please", "find", "explain", "let", "remind", "say", "name")
    return text + ("." if starts_request else "?")


@dataclass(frozen=True)
class Verb:
    """Forms of a verb phrase, with the preposition of its complement."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    preposition: str


def _third(word: str) -> str:
    if word in ("be", "have"):
        return {"be": "is", "have": "has"}[word]
    if word.endswith(("s", "sh", "ch", "x", "z", "o")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else word + "s"


def _regular(word: str, ending: str) -> str:
    if word.endswith("e"):
        return word + "d" if ending == "ed" else word + ending if word.endswith("ee") else word[:-1] + ending
    if ending == "ed" and word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ied"
    doubled = word in ("ship", "stop", "admit", "permit", "fit", "cut", "put", "let", "set", "run", "get",
                       "begin", "shut", "plan", "cap", "submit", "control", "stack up", "sit")  # fmt: skip
    return word + (word[-1] if doubled else "") + ending


def parse_verb(text: str) -> Verb:
    """`take/took/taken care of` or `run/ran/run @on` or `weigh`."""
    phrase, _, preposition = text.partition("@")
    first, _, rest = phrase.strip().partition(" ")
    base, past, participle = first.split("/") if "/" in first else (first, _regular(first, "ed"), _regular(first, "ed"))
    gerund = {"lie": "lying", "be": "being"}.get(base) or _regular(base, "ing")
    base, third, past, participle, gerund = (
        f"{form} {rest}".strip() for form in (base, _third(base), past, participle, gerund)
    )
    return Verb(base, third, past, participle, gerund, preposition.strip())


_DOES_BE = re.compile(r"\b(?:does|did|do) (\{e\}|it)((?: \w+)?) be\b")


def _spoken(
    frames: str, verb: Verb, question_words: list[str], person: str, joined: bool, rng: random.Random
) -> list[list[str]]:
    """The frames (one a line) with a verb's forms: one list of variants a frame."""
    behind = f" {verb.preposition}" if joined and verb.preposition else ""
    for key, form in (
        ("BASE", verb.base), ("VS", verb.third), ("PAST", verb.past), ("PP", verb.participle), ("ING", verb.gerund),
    ):  # fmt: skip
        frames = re.sub(rf"\b{key}\b", form + behind, frames)
    if joined and person == "thing":
        frames = re.sub(r"\bwhom?\b", "what", frames)
    lines = []
    for line in _lines(frames):
        made: list[str] = []
        for text in some_of(line.replace("PERSON", person), VARIANTS, rng):
            word = rng.choice(question_words)
            bare = joined or ("WH" in text and word.startswith("-"))
            text = text.replace("PREP", "" if bare else verb.preposition).replace("WH", word.lstrip("-"))
            made.append(_DOES_BE.sub(r"is \1\2", _tidy(text)))
        lines.append(made)
    return lines


@cache
def _frame_lines(frames: str) -> tuple[str, ...]:
    return tuple(_lines(frames))


def in_frame(frames: str, verb: Verb, words: tuple[str, ...], person: str, rng: random.Random, question: bool) -> str:
    """One wording of a verb, drawn from a text of frames."""
    text = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), rng.choice(_frame_lines(frames)))
    word = rng.choice(words) if question else ""
    joined = person != "thing"
    behind = f" {verb.preposition}" if joined and verb.preposition else ""
    for key, form in (
        ("BASE", verb.base), ("VS", verb.third), ("PAST", verb.past), ("PP", verb.participle), ("ING", verb.gerund),
    ):  # fmt: skip
        text = text.replace(key, form + behind)
    bare = joined or (word.startswith("-") and "WH" in text)
    text = text.replace("PREP", "" if bare else verb.preposition).replace("WH", word.lstrip("-"))
    text = text.replace("PERSON", person).replace("TAIL", rng.choice(TAILS)).replace("TELL", rng.choice(TELL))
    return _finish(_tidy(text), question)


VE_SAY = """
{v} (VS|currently VS|still VS|always VS|alone VS|has PP|PAST) {e}
{e} (is|has been|was|will be) (now|currently|always|still|) PP by {v}
It is {v} (who|that) VS {e}
(The|Our) PERSON (who|that) VS {e} (is|is called|has the name) {v}
{v} is the PERSON (who|that) VS {e}
{v} (is there|was chosen|was asked|is paid|came) to BASE {e}
ING {e} is (up to|the job of|a matter for|left to|the work of) {v}
(To BASE|The task to BASE) {e} (is|was) given to {v}
Nobody but {v} VS {e}
PP by {v}, {e} TAIL
{e}, (which is|) PP by {v}, TAIL
(We|They) have {v} to BASE {e}
{v} (will|can|does|is said to|is known to) BASE {e}
(If|When) somebody VS {e}, it is {v}
{v} VS {e} (well|with great care|every day|since the spring|on behalf of all)
"""
VE_ASK = """
WH (VS|PAST|has PP|will BASE|is ING|usually VS|really VS|now VS|still VS) {e}
WH is {e} PP by
By (whom|which PERSON|whom exactly) (is|was) {e} PP
By whom has {e} been PP
WH is it that VS {e}
WH is the PERSON (who|that) VS {e}
{e} is PP by (whom|who)
Whose (job|task|work|business) is it to BASE {e}
WH was (asked|chosen|paid|called) to BASE {e}
TELL WH (VS|is ING|now VS) {e}
Name (the PERSON|) who VS {e}
WH (can|does|would you say does|may) BASE {e}
WH do we (have|need|ask|pay) to BASE {e}
As for {e}, WH VS it
{e}: WH VS it
"""
EV_SAY = """
{e} (VS|still VS|usually VS|always VS|normally VS|now VS|PAST|has PP) PREP {v}
{e} (will|can|must|should|does|is said to|is known to|is expected to|is meant to|seems to) BASE PREP {v}
What {e} VS PREP is {v}
{v} is what {e} (VS|PAST|will BASE) PREP
It is PREP {v} that {e} VS
ING PREP {v}, {e} TAIL
{e}, which VS PREP {v}, TAIL
(The list|Our file|The report|A note|The plan) says that {e} VS PREP {v}
(As|Just as) (last year|planned|agreed|before), {e} VS PREP {v}
PREP {v} {e} VS
{e}: VS PREP {v}
(Does|Did) {e} BASE PREP {v}? (Yes, it does|It does|It did|Indeed)
{e} VS PREP {v} (at present|these days|as everybody can see|and has done so for years|and nothing else)
"""
EV_ASK = """
WH (does|did|will|must|should|can|may|would) {e} (BASE|normally BASE|usually BASE|really BASE|now BASE) PREP
PREP WH (does|did|will|can|must) {e} BASE
WH is it that {e} VS PREP
{e} VS PREP WH
TELL WH {e} (VS|PAST|has to BASE|will BASE|can BASE) PREP
WH is {e} (said|known|expected|supposed|meant) to BASE PREP
As for {e}, WH does it BASE PREP
{e}: WH does it BASE PREP
WH has {e} PP PREP
WH, please, does {e} BASE PREP
"""
EP_SAY = """
{e} (is|was|has been|will be|must be|can be|should be|is to be|is usually|is now|is always) PP PREP {v}
(We|They|People|The staff|I) (BASE|PAST|always BASE|usually BASE|have to BASE|must BASE|can BASE) {e} PREP {v}
(PREP|Only PREP) {v} {e} is PP
{v} is what {e} is PP PREP
It is PREP {v} that {e} (is|was|gets) PP
PP PREP {v}, {e} TAIL
{e}, (which is|) PP PREP {v}, TAIL
(BASE|Please BASE|Always BASE|Do BASE) {e} PREP {v}
(A colleague|Somebody|Our team) (VS|PAST|is ING) {e} PREP {v}
{e} (gets|got) PP PREP {v}
(To|If you want to) BASE {e}, think of {v}
{e}: PP PREP {v}
{v}: that is what {e} is PP PREP
"""
EP_ASK = """
PREP WH (is|was) {e} (|usually |now )PP
PREP WH (must|should|can|will) {e} be PP
(PREP WH|WH) has {e} been PP
WH (is|was) {e} (PP|usually PP|normally PP|now PP) PREP
WH (do|did|should|can|must) (we|they|people|I) BASE {e} PREP
PREP WH (do|should|must|did|can) (we|they|I|people) BASE {e}
{e} (is|was) PP PREP WH
TELL WH (I|we|they|people) (should|can|must|) BASE {e} PREP
TELL WH {e} (is|was|must be) PP PREP
WH is it that {e} is PP PREP
As for {e}, WH is it PP PREP
{e}: WH is it PP PREP
WH, please, is {e} PP PREP
"""


@dataclass(frozen=True)
class Wordings:
    """Training wordings of one relation. A group holds the variants of one line; draw a group, then a variant."""

    says: Groups
    asks: Groups
    nouns: tuple[str, ...]
    by_entity: tuple[str, ...]
    by_value: tuple[str, ...]


def _groups(lines: list[list[str]], question: bool, held: tuple[str, ...], rng: random.Random) -> Groups:
    """Finished wordings of every line, without any that contains a held-out wording."""
    groups = []
    bags = _held_bags()
    for line in lines:
        kept: list[str] = []
        for text in line:
            text = text.replace("TAIL", rng.choice(TAILS)).replace("TELL", rng.choice(TELL))
            if text.count("{e}") != 1 or text.count("{v}") != (not question):
                continue
            padded = f" {normalised(text)} "
            if _bag(padded) not in bags and not any(f" {wording} " in padded for wording in held):
                kept.append(_finish(text, question))
        if kept:
            groups.append(tuple(dict.fromkeys(kept)))
    return tuple(groups)


def _balanced(lines: Groups, verbs: Groups) -> Groups:
    """All groups; those of written lines repeated until they are about as likely to be drawn as those of verbs."""
    return lines * max(1, round(len(verbs) / max(1, len(lines)))) + verbs


def _held(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(normalised(text) for text in texts)


def _blocks() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for block in WORDINGS_TEXT.strip().split("\n\n"):
        name, *lines = _lines(block)
        marks: dict[str, list[str]] = {mark: [] for mark in ("w", "n", "ve", "ev", "ep", "+", "?")}
        for line in lines:
            mark, _, rest = line.partition(" ")
            marks[mark].append(rest.strip())
        found[name] = marks
    return found


def _lines(text: str) -> list[str]:
    """The lines of a text, continuation lines (two spaces first) joined to the one before."""
    return text.strip().replace("\n  ", " ").splitlines()


def _items(lines: list[str]) -> list[str]:
    return [item.strip() for line in lines for item in line.split(";")]


def _make(relation: Relation, lines: dict[str, list[str]]) -> Wordings:
    words = _items(lines["w"])
    rng = random.Random(relation.name)
    person = {"person": "person", "company": "company"}.get(relation.value, "thing")
    says = [[text] for text in relation.says] + [some_of(line, VARIANTS, rng) for line in lines["+"]]
    asks = [[text] for text in relation.asks] + [some_of(line, VARIANTS, rng) for line in lines["?"]]
    verb_says: list[list[str]] = []
    verb_asks: list[list[str]] = []
    for mark, say_frames, ask_frames in (("ve", VE_SAY, VE_ASK), ("ev", EV_SAY, EV_ASK), ("ep", EP_SAY, EP_ASK)):
        for item in _items(lines[mark]):
            verb = parse_verb(item)
            verb_says += _spoken(say_frames, verb, words, person, mark == "ve", rng)
            verb_asks += _spoken(ask_frames, verb, words, person, mark == "ve", rng)
    nouns = tuple(dict.fromkeys((*relation.nouns, *_items(lines["n"]))))
    held_says, held_asks = _held(relation.held_says), _held(relation.held_asks)
    return Wordings(
        _balanced(_groups(says, False, held_says, rng), _groups(verb_says, False, held_says, rng)),
        _balanced(_groups(asks, True, held_asks, rng), _groups(verb_asks, True, held_asks, rng)),
        nouns,
        _descriptions(relation, lines, nouns, person),
        _by_value(relation, lines, nouns),
    )


def _descriptions(
    relation: Relation, lines: dict[str, list[str]], nouns: tuple[str, ...], person: str
) -> tuple[str, ...]:
    """Descriptions of the value by the entity, where relations.py has some."""
    if not relation.by_entity:
        return ()
    made = [*relation.by_entity]
    if relation.value != "site":
        made += [f"the {noun} {of} {{e}}" for noun in nouns for of in ("of", "for", "at")]
    for verb in map(parse_verb, _items(lines["ve"])):
        for one in {"person": ("person", "man or woman", "colleague"), "company": ("company", "business")}[person]:
            behind = f" {verb.preposition}" if verb.preposition else ""
            made += [f"the {one} {who} {verb.third}{behind} {{e}}" for who in ("who", "that")]
            made += [f"the {one} by whom {{e}} is {verb.participle}{behind}", f"the {one} {verb.gerund}{behind} {{e}}"]
    return _without(made)


def _by_value(relation: Relation, lines: dict[str, list[str]], nouns: tuple[str, ...]) -> tuple[str, ...]:
    """Descriptions of the entity by its value, where relations.py has some."""
    if not relation.by_value:
        return ()
    made = [*relation.by_value]
    if "{k}" in made[-1]:
        made += [f"the {{k}} {having} {{v}} as {its} {noun}" for noun in nouns for having, its in (
            ("with", "its"), ("that has", "its"), ("which has", "the"), ("having", "its"))]  # fmt: skip
        for verb in map(parse_verb, _items(lines["ve"])):
            behind = f" {verb.preposition}" if verb.preposition else ""
            made += [f"the {{k}} {which} {{v}} {verb.third}{behind}" for which in ("that", "which", "")]
            made += [f"the {{k}} {which} {verb.participle}{behind} by {{v}}" for which in ("", "that is", "which is")]
        for verb in map(parse_verb, _items(lines["ev"])):
            made += [f"the {{k}} {which} {verb.third} {verb.preposition} {{v}}" for which in ("that", "which")]
        for verb in map(parse_verb, _items(lines["ep"])):
            made += [f"the {{k}} {which} {verb.participle} {verb.preposition} {{v}}" for which in ("", "that is")]
    return _without([_tidy(text) for text in made])


def _without(texts: list[str]) -> tuple[str, ...]:
    held = [text for held_texts in (*HELD_BY_ENTITY.values(), *HELD_BY_VALUE.values()) for text in held_texts]
    forbidden = set(map(normalised, held))
    return tuple(text for text in dict.fromkeys(texts) if normalised(text) not in forbidden)


@cache
def training_wordings() -> dict[str, Wordings]:
    """The training wordings of every relation, by its name."""
    blocks = _blocks()
    return {relation.name: _make(relation, blocks[relation.name]) for relation in RELATIONS}


@cache
def noun_wordings() -> tuple[Groups, ...]:
    """Groups of (sentences, questions, sentences about people, questions about people) with a noun `{n}`."""
    made = []
    for text, own, held, question in (
        (SAY_NOUN, SAY_FRAMES[0], SAY_FRAMES[1], False),
        (ASK_NOUN, ASK_FRAMES[0], ASK_FRAMES[1], True),
        (SAY_PERSON, (), SAY_FRAMES[1], False),
        (ASK_PERSON, WHO_FRAMES[0], WHO_FRAMES[1], True),
    ):
        rng = random.Random(text)
        lines = [[frame] for frame in own] + [some_of(line[2:], 8 * VARIANTS, rng) for line in _lines(text)]
        made.append(_groups(lines, question, _held(held), rng))
    return tuple(made)


def _bag(wording: str) -> tuple[str, ...]:
    return tuple(sorted(wording.split()))


@cache
def _held_bags() -> frozenset[tuple[str, ...]]:
    """Every held-out wording, whatever the order of its words."""
    return frozenset(map(_bag, held_exactly()))


@cache
def held_exactly() -> frozenset[str]:
    """Every held-out wording, normalised."""
    texts = [text for relation in RELATIONS for text in (*relation.held_says, *relation.held_asks)]
    texts += [*SAY_FRAMES[1], *ASK_FRAMES[1], *WHO_FRAMES[1]]
    return frozenset(map(normalised, texts))
