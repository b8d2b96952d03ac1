"""Everyday English words by kind, for the line generators in `phrases.py`."""

from __future__ import annotations

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth",
    "nineteenth",
    "twentieth", "twenty-first", "twenty-second", "twenty-third", "twenty-fourth", "twenty-fifth",
    "twenty-sixth",
    "twenty-seventh", "twenty-eighth", "twenty-ninth", "thirtieth", "thirty-first",
)  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in text.split(","))


MONTHS = _words(
    "January February March April May June July August September October November December"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLOURS = _words(
    "red blue green yellow purple orange pink brown black white gray silver golden scarlet "
    "crimson violet turquoise"
)
NAMES = _words("""
    Anna Ben Clara David Emma Frank Grace Henry Iris Jack Karen Leo Maria Nathan Olivia Peter Quinn
    Rosa Samuel Tina Victor Wendy Xavier Yusuf Zoe Aisha Björn Chen Diego Elena Fatima George Hana
    Ivan Julia Kofi Laura Miguel Nina Omar Priya Ravi Sofia Thomas Ursula Vera William Yara Margaret
    Charles Elizabeth Joseph Alice Andrew Arthur Barbara Beatrice Brian Caroline Catherine
    Christopher Daniel Deborah Dorothy Edward Eleanor Eric Evelyn Fiona Florence Gabriel Gregory
    Hannah Harold Heather Hugo Isaac Isabel James Jasmine Jennifer Jeremy Jessica Joan John Jonathan
    Joshua Judith Keith Kenneth Kevin Liam Linda Louise Lucas Lucy Mark Martin Matthew Megan Michael
    Monica Natalie Nicholas Nora Oscar Pamela Patrick Paul Philip Rachel Rebecca Richard Robert
    Roger Ruth Sandra Sarah Sebastian Simon Sophie Stephen Susan Theodore Timothy Valerie Vincent
    Walter Zachary Abigail Mohammed Mei Kenji Anjali Ingrid Pedro
""")
SURNAMES = _words("""
    Smith Johnson Williams Brown Jones Garcia Miller Davis Martinez Lopez Wilson Anderson Taylor
    Moore Jackson Thompson White Harris Clark Lewis Walker Hall Young King Wright Hill Green Baker
    Nelson Carter Mitchell Turner Parker Evans Collins Murphy Cooper Bailey Kelly Howard Ward Brooks
    Gray Watson Hughes Foster Bennett Reed Rodriguez Hernandez Robinson Allen Scott Adams Campbell
    Roberts Phillips Edwards Stewart Morris Morgan Peterson Ramirez James Bell Sanders Price Wood
    Barnes Ross Henderson Coleman Jenkins Perry Powell Long Patterson Simmons Griffin Hayes Bryant
    Russell Fisher Stone Hawkins Dunn Perkins Hudson Spencer Gardner Payne Pierce Berry Matthews
    Wagner Willis Ray Fox Knight Elliott Cunningham Duncan Armstrong Lane Andrews Ruiz Harper Weaver
    Greene Chapman Sullivan Patel Nguyen Kim
""")
CITIES = _phrases("""
    London, Paris, Berlin, Madrid, Rome, Vienna, Tokyo, Sydney, Toronto, Chicago, Boston, Denver,
    Dublin, Cairo, Lagos, Nairobi, Lima, Oslo, Helsinki, Lisbon, Athens, Istanbul, Mumbai,
    Singapore, New York, San Francisco, Los Angeles, New Orleans, Buenos Aires, Amsterdam, Brussels,
    Budapest, Prague, Warsaw, Stockholm, Copenhagen, Edinburgh, Glasgow, Manchester, Liverpool,
    Montreal, Vancouver, Seattle, Portland, Houston, Dallas, Atlanta, Miami, Philadelphia,
    Washington, Detroit, Phoenix, Moscow, Beijing, Shanghai, Hong Kong, Seoul, Bangkok, Jakarta,
    Melbourne, Auckland, Cape Town, Casablanca, Havana, Mexico City, Rio de Janeiro, Santiago,
    Delhi, Geneva, Zurich, Munich, Hamburg, Barcelona, Venice, Naples, Florence, Reykjavik,
    Minneapolis, Cincinnati, Albuquerque, Honolulu
""")
COUNTRIES = _phrases("""
    England, Scotland, Ireland, Wales, France, Germany, Spain, Portugal, Italy, Greece, Turkey,
    Egypt, Kenya, Nigeria, South Africa, India, China, Japan, Korea, Thailand, Vietnam, Australia,
    New Zealand, Canada, Mexico, Brazil, Argentina, Chile, Peru, Norway, Sweden, Denmark, Finland,
    Iceland, Poland, Austria, Switzerland, Belgium, Russia, the Netherlands, the United States,
    Morocco, Ethiopia, Pakistan, Indonesia, Cuba, Jamaica, Ukraine, Hungary
""")
SPOTS = _phrases("""
    airport, station, library, market, museum, harbour, office, old bridge, town square, bakery,
    hospital, theatre, garden, corner shop, church, school, river, beach, park, bank, post office,
    hotel, pharmacy, stadium, factory, farm, castle, lighthouse, cinema, zoo, university,
    playground, parking lot, bus stop, police station, swimming pool, supermarket, bookshop,
    coffee shop, fire station, city hall, railway, canal, forest, lake, village, valley, cabin
""")
ROOMS = _phrases("""
    kitchen, bedroom, bathroom, hallway, attic, basement, garage, dining room, living room, office,
    closet, porch, balcony, pantry, laundry room, staircase, workshop, nursery, cellar, study
""")
THINGS = _words("""
    apple book camera door engine flower guitar hammer island jacket kettle lamp mirror notebook
    orange pencil quilt radio sandwich table umbrella violin window yacht zipper bicycle candle
    dragon elevator feather glacier helmet keyboard ladder magnet necklace oven puzzle telescope
    vacuum whistle blanket carpet drawer envelope fountain journal letter mountain napkin ocean
    parcel question river shoulder ticket wallet yard breakfast chocolate strawberry thermometer
    vegetable wardrobe anchor arrow axe badge bag ball balloon banana barn barrel basin basket bath
    battery beam bean bed bell belt bench bill board boat bolt bone bottle bowl box bracelet branch
    brick bridge broom brush bucket button cabin cable cage cake calendar can canoe canvas cap car
    card cart castle chain chair chest chimney circle clay cliff clock cloth cloud coat coin collar
    comb corner cottage cough counter cradle crane crown cup curtain cushion desk dial dish ditch
    dock dress drill drum ear edge egg elbow fan farm fence field finger fire fist flag flame flask
    floor flute fog fork frame fruit garden gate gear gift glass globe glove gown grain grape grass
    grave groove ground guard gun hall hammock handle harbor harp hat hedge heel hill hinge hoe hole
    hook horn hose hotel house hut ink jar jaw jewel jug key knee knife knob knot lake lane lantern
    lawn leaf ledge leg lemon lens lid light line lip lock log loaf lumber map marble mast mat match
    meal medal melon mill mine mitten mop motor mouth mug nail neck needle nest net nose note nut
    oar oak paddle page pail paint palace pan paper park path pear pearl pebble pedal peg pen piano
    picture pie pier pillar pillow pin pine pipe pistol pit plank plate plow plug pocket pole pond
    porch post pot pouch pump purse rack raft rail rake ramp rattle razor reef ribbon ring road robe
    rock rod roof room rope rose rudder rug ruler sack saddle sail salad sauce saw scale scarf
    screen screw seal seat shade shelf shell shield ship shirt shoe shovel sink skate skirt sled
    sleeve slice slope soap sock sofa song soup spade spoon spring square stage stain stair stamp
    star stick stone stool store storm stove straw stream street string stump suit summit switch
    sword tail tank tape target temple tent thorn thread throat throne thumb tie tile toe tomb tool
    tooth torch towel tower town toy track trail train tray treasure tree trench trumpet trunk tub
    tube tunnel turnip valley vase vest vine wagon wall watch wave wheel whip wick wing wire wreath
    wrench wrist
""")
MASS = _words("""
    water milk sand snow smoke steam bread butter cheese rice salt sugar flour honey coffee tea soup
    oil ink wax glue dust mud clay coal iron steel copper silver gold tin lead wool silk cotton
    leather wood lumber straw hay grass corn wheat barley ice rain thunder music laughter light
    darkness heat frost fog mist sunshine wind traffic money furniture paper pepper vinegar mustard
    juice beef pork chicken fish fruit cloth rubber plastic glass gravel concrete paint varnish
""")
ANIMALS = _words("""
    dog cat horse cow pig sheep goat donkey rabbit squirrel mouse rat fox wolf bear deer moose lion
    tiger elephant giraffe zebra monkey camel kangaroo hen rooster duck goose swan eagle hawk owl
    crow sparrow robin pigeon parrot turkey frog toad snake lizard turtle fish trout salmon shark
    whale dolphin crab lobster bee wasp ant spider butterfly moth beetle worm pup kitten colt calf
    lamb hound mule otter beaver badger hedgehog penguin ostrich
""")
PEOPLE = _phrases("""
    doctor, nurse, teacher, farmer, baker, sailor, soldier, captain, driver, pilot, lawyer, judge,
    clerk, carpenter, plumber, painter, singer, dancer, actor, writer, poet, tailor, barber,
    butcher, grocer, miner, hunter, fisherman, shepherd, gardener, waiter, waitress, cook, guard,
    king, queen, prince, princess, mayor, priest, student, pupil, child, boy, girl, man, woman,
    old man, young woman, stranger, neighbour, friend, guest, visitor, tourist, thief, detective,
    engineer, scientist, professor, librarian, mechanic, dentist, secretary, manager, cashier,
    postman, grandmother, grandfather, uncle, aunt, cousin, brother, sister, mother, father, twins,
    crowd, crew, team, family
""")
FOODS = _phrases("""
    a bowl of soup, a slice of bread, a cup of tea, a glass of milk, a piece of cake,
    two boiled eggs, fried rice, roast chicken, mashed potatoes, green beans, a cheese sandwich,
    tomato sauce, apple pie, vanilla ice cream, oatmeal, pancakes with syrup, grilled salmon,
    a baked potato, fresh strawberries, lemon juice, black coffee, hot chocolate,
    a handful of almonds, spaghetti, mushroom soup, garlic bread, onion rings, pickled cucumbers,
    blueberry muffins, a bunch of grapes, ginger cookies, peanut butter, a ripe mango,
    scrambled eggs and bacon, a turkey sandwich
""")
ADJECTIVES = _words("""
    red blue green small large quiet loud bright dark heavy light strange new old broken wooden
    golden soft sharp warm cold empty full smooth rough thick thin narrow wide gentle curious honest
    lazy clever brave tired hungry thirsty beautiful ordinary peculiar enormous transparent square
    round fresh sour sweet bitter tall short long deep shallow steep flat straight crooked bent
    loose tight firm hard stiff weak strong swift slow quick sudden steady calm wild tame fierce
    mild harsh keen dull pale dim clear cloudy muddy dusty dirty clean neat tidy plain fancy cheap
    costly rare common famous secret hidden open closed locked frozen melted burnt raw ripe rotten
    stale moist damp wet dry hot cool chilly icy snowy rainy windy foggy sunny gloomy cheerful happy
    sad angry proud humble shy bold rude polite kind cruel wise foolish silly serious funny dreadful
    awful terrible wonderful lovely splendid pleasant perfect useful useless precious valuable
    worthless ancient modern early late final first last next brief huge tiny giant grand great
    little young aged busy idle nervous anxious eager ready safe dangerous poisonous rusty shiny
    sparkling hollow solid fragile delicate sturdy tough tender faint vivid striped spotted woolen
    leather paper glass stone iron copper silver plastic rubber northern southern eastern western
    distant nearby rural foreign local public private whole half double single extra spare missing
    lost stolen borrowed favourite usual unusual obvious mysterious
""")
ADVERBS = _words("""
    slowly quickly quietly loudly softly gently carefully carelessly suddenly finally early late
    soon often never always seldom rarely usually sometimes twice again together alone outside
    inside upstairs downstairs everywhere nearby away home abroad easily hardly nearly almost badly
    well happily sadly angrily proudly politely bravely eagerly patiently nervously silently
    smoothly steadily firmly tightly loosely neatly warmly coldly kindly honestly secretly openly
    immediately eventually yesterday today tonight
""")
#: Infinitive, past, present participle.
VERBS = tuple(
    tuple(forms.split())
    for forms in _phrases("""
    find found finding, lose lost losing, carry carried carrying, open opened opening,
    close closed closing, paint painted painting, wash washed washing, fix fixed fixing,
    break broke breaking, sell sold selling, buy bought buying, borrow borrowed borrowing,
    return returned returning, hide hid hiding, show showed showing, move moved moving,
    measure measured measuring, throw threw throwing, catch caught catching, draw drew drawing,
    choose chose choosing, count counted counting, describe described describing,
    explain explained explaining, forget forgot forgetting, remember remembered remembering,
    follow followed following, leave left leaving, watch watched watching, hold held holding,
    lift lifted lifting, push pushed pushing, pull pulled pulling, clean cleaned cleaning,
    bring brought bringing, build built building, burn burned burning, cover covered covering,
    cut cut cutting, drop dropped dropping, feed fed feeding, fill filled filling,
    fold folded folding, gather gathered gathering, grab grabbed grabbing, guard guarded guarding,
    hang hung hanging, hear heard hearing, heat heated heating, keep kept keeping,
    kick kicked kicking, knock knocked knocking, load loaded loading, lock locked locking,
    make made making, mend mended mending, nail nailed nailing, need needed needing,
    notice noticed noticing, order ordered ordering, pack packed packing, pass passed passing,
    pick picked picking, place placed placing, plant planted planting, polish polished polishing,
    pour poured pouring, press pressed pressing, print printed printing, raise raised raising,
    reach reached reaching, repair repaired repairing, ride rode riding, roll rolled rolling,
    rub rubbed rubbing, save saved saving, scratch scratched scratching, see saw seeing,
    send sent sending, serve served serving, shake shook shaking, share shared sharing,
    sharpen sharpened sharpening, smash smashed smashing, smell smelled smelling,
    split split splitting, spread spread spreading, steal stole stealing, store stored storing,
    strike struck striking, sweep swept sweeping, take took taking, taste tasted tasting,
    tear tore tearing, test tested testing, tie tied tying, touch touched touching,
    trade traded trading, turn turned turning, use used using, wear wore wearing,
    weigh weighed weighing, wrap wrapped wrapping, admire admired admiring,
    answer answered answering, arrange arranged arranging, bury buried burying,
    check checked checking, collect collected collecting, decorate decorated decorating,
    deliver delivered delivering, destroy destroyed destroying, discover discovered discovering,
    examine examined examining, ignore ignored ignoring, invent invented inventing,
    photograph photographed photographing, protect protected protecting, remove removed removing,
    replace replaced replacing, rescue rescued rescuing, search searched searching
    """)
)
#: Past and infinitive of verbs that need no object.
MOVES = tuple(
    tuple(forms.split())
    for forms in _phrases("""
    ran run, walked walk, fell fall, stood stand, sat sit, slept sleep, waited wait, jumped jump,
    climbed climb, crawled crawl, danced dance, drifted drift, floated float, flew fly, glowed glow,
    grew grow, hurried hurry, lay lie, leaned lean, marched march, rested rest, rolled roll,
    rose rise, sailed sail, sang sing, sank sink, shone shine, slid slide, slipped slip, spun spin,
    stayed stay, stopped stop, swam swim, swung swing, trembled tremble, turned turn,
    vanished vanish, wandered wander, whistled whistle, worked work, cried cry, laughed laugh,
    arrived arrive, disappeared disappear, paused pause, knelt kneel, bounced bounce,
    rattled rattle, leaked leak, cracked crack
    """)
)
PREPOSITIONS = _phrases("""
    on, in, under, over, behind, beside, near, across, through, around, along, above, below,
    against, between, past, toward, into, onto, from, by, inside, outside, beyond, at the end of,
    in front of, on top of, next to, far from, at the edge of, in the middle of
""")
UNITS = _words("""
    dollars euros pounds miles kilometers meters inches feet yards gallons liters ounces kilograms
    hours minutes seconds days weeks months years percent degrees pages points tickets people votes
    acres tons
""")
WEATHER = _phrases("""
    light rain, heavy rain, scattered showers, thunderstorms, thick fog, strong winds, clear skies,
    sunshine, snow, freezing rain, hail, patchy clouds, a cool breeze, high humidity, morning frost,
    drizzle, a chance of sleet, haze
""")
DEVICES = _phrases("""
    lights, heating, alarm, television, radio, oven, dishwasher, washing machine, thermostat,
    front door, garage door, fan, air conditioner, speaker, sprinkler, coffee maker, printer,
    router, phone, laptop, camera, screen
""")
GREETINGS = (
    "Yes.", "No.", "Hi!", "Hello.", "Hello!", "Hey!", "Okay.", "Sure.", "Thanks.", "Thank "
    "you.", "Please.",
    "Sorry.", "Stop!", "Wait.", "Go!", "Why?", "What?", "When?", "Who?", "Where?", "How?"
    "", "Really?", "Maybe.",
    "Never.", "Always.", "Today.", "Tomorrow.", "Good morning.", "Good "
    "night.", "Goodbye.", "Welcome back.",
    "Of course.", "Not yet.", "Come in.", "Sit down.", "Look out!", "Well done!", "No "
    "problem.", "I see.",
    "I know.", "You too.", "Right now.", "One moment, please.", "What time is it?", "How are you?",
    "I don't know.", "That's right.", "Never mind.", "Help!", "Congratulations!", "Excuse "
    "me.", "After you.",
    "Nice to meet you.", "See you soon.", "Good luck!", "Be careful.", "Turn left.", "Turn right.",
    "Go straight on.", "Good evening.", "Good afternoon.", "Bye.", "Bye for now.", "Thanks a "
    "lot!", "Not at all.",
    "You're welcome.", "It's fine.", "I'm here.", "Who's there?", "Let's go!", "Let's "
    "see.", "Hurry up!", "Calm down.",
    "Oh no!", "Oh, I see.", "Hmm.", "Well, maybe.", "Yes, please.", "No, thanks.", "Not "
    "really.", "Absolutely!",
    "Exactly.", "Perfect.", "Great!", "Fine.", "Correct.", "Wrong.", "Again.", "Once "
    "more.", "Keep going.",
    "Try again.",
    "Are you sure?", "Is that so?", "What happened?", "How much?", "How far?", "Which one?"
    "", "What's next?",
    "Any questions?",
    "Guess what!", "Watch out!", "Hold on.", "Hang on a second.", "Just a minute.", "Take "
    "care.", "Sleep well.",
    "Happy birthday!", "Merry Christmas!", "Happy new year!", "Cheers!", "Enjoy your "
    "meal.", "Have a nice day.",
)  # fmt: skip
